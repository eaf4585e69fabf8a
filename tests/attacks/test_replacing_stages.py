"""A shuffle stage that replaces reports: what sealed reports and shares do not promise.

The first stage passes on the reports of one victim, and reports of its own in place of all others.
Everything after it is honest. What is published is then the victim's alone, however large the
window is said to be: the noise of the other contributors is gone. So no guarantee may be claimed
against such a stage, and the sentences about sealed jobs say so.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.sealed import SHARERS
from dpstream.pipeline.jobs.sealing_keys import KeyRing
from dpstream.pipeline.planning.parties import party_guarantees
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.pipeline.stages.windows import Window
from dpstream.topics.manifests import Fate
from dpstream.topics.sealed_words import pack_reports, seal_rows
from dpstream.topics.shares import share_table
from dpstream.topics.words import Words
from tests.support.sealing import all_keys, ring, sealed_section, shares_section
from tests.support.world import World

OTHERS = 60
ITEMS = "abcdefgh"
STAGES = ((2,), (3,))


class _Replacing:
    """Replace the reports of all producers with more than one device, when it is `on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> None:
        complete, write = Window._complete, ShuffleStage._write
        replaced = 0

        def drop(self: Any, enrolment: bytes, drawing: Any) -> Any:
            nonlocal replaced
            if drawing.whole and drawing.punctuation.contributors > 1:
                replaced += len(drawing.words.sorted().values)
                drawing.words = self._multiset()
            return complete(self, enrolment, drawing)

        def add(self: Any, state: Any, decision: Any, words: Any) -> Any:
            job = self._job
            if shared:
                form = job.table_form
                locks = tuple(job.lock(party, 1) for party in SHARERS)
                table = np.zeros(form.cells, np.uint32)
                words.add(Words(share_table(table, OTHERS, form, locks, secrets.token_bytes)))
            else:
                form = job.word_form
                chaff = pack_reports(np.zeros((0, 1), form.dtype), replaced, form)
                boxes = seal_rows(chaff, [job.lock("aggregate", 1), job.lock("stage 2", 1)])
                words.add(Words(boxes))
            return (yield from write(self, state, decision, words))

        monkeypatch.setattr(Window, "_complete", drop)
        monkeypatch.setattr(ShuffleStage, "_write", add)


def _published(
    folder: Path, section: dict[str, Any], keys: KeyRing, item: int
) -> np.ndarray[Any, Any]:
    job = deploy_job(
        make_job(
            {
                "name": "sealed",
                "protocol": "count_min",
                "parameters": {"epsilon": 1, "delta": 1e-6, "domain": list(ITEMS)},
                "epochs": {"count": 1, "start": "2023-01-01", "length": "PT1H"},
                "shuffle": {"minimum": OTHERS, "producers": 2},
                "topics": {"partitions": 1},
                "sealed": section,
            }
        ),
        deployment=bytes(range(16)),
        deployed_at=0,
    )
    values = {"victim": {1: {"v": [item]}}, "rest": {1: {f"r{n}": [1] for n in range(OTHERS)}}}
    world = World(job, folder, values, keys=keys)  # type: ignore[arg-type]
    for name in values:
        world.close_epoch(name, 1)
    world.settle()
    world.settle()
    record = world.published()[1]
    world.shut()
    assert record.fate is Fate.RELEASED
    assert record.contributors > OTHERS
    assert record.estimate is not None
    return np.asarray(record.estimate.intervals[0])


@pytest.mark.parametrize(
    ("section", "keys", "shared"),
    [
        pytest.param(sealed_section(STAGES), all_keys(STAGES), False, id="sealed, two stages"),
        pytest.param(shares_section((1, 2)), ring([1, 2]), True, id="shares"),
    ],
)
def test_a_stage_that_replaces_reports_publishes_those_of_one_victim(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, Any],
    keys: KeyRing,
    shared: bool,
) -> None:
    honest = _published(tmp_path / "honest", section, keys, 3)
    _Replacing(monkeypatch, shared=shared)
    third = _published(tmp_path / "third", section, keys, 3)
    seventh = _published(tmp_path / "seventh", section, keys, 7)
    # The victim draws the same dummies twice, so the two differ by its own message alone,
    moved = np.flatnonzero(np.round(third - seventh))
    assert moved.tolist() == [2, 6]
    # and of the dummies of the other 60, hundreds, nothing is left.
    assert honest.sum() - third.sum() > 5 * OTHERS


@pytest.mark.parametrize("section", [sealed_section(STAGES), shares_section((1, 2))])
def test_no_sentence_claims_a_guarantee_against_a_stage_that_replaces(
    section: dict[str, Any],
) -> None:
    job = make_job(
        {
            "name": "sealed",
            "protocol": "count_min",
            "parameters": {"epsilon": 1, "delta": 1e-6, "domain": list(ITEMS)},
            "epochs": {"count": 1},
            "shuffle": {"minimum": OTHERS},
            "sealed": section,
        }
    )
    law = job.calibrate()
    assert "replaces or withholds reports" in job.guarantee_of(law).trust
    (stage,) = (each for each in party_guarantees(job, law) if each.kind == "stage")
    assert "passes on every report and none of its own" in stage.assumes
