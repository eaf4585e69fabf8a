"""Test sealed reports and shares against a shuffler that replaces reports.

The first shuffler forwards the reports of one victim, and its own reports in place of all others.
The noise of the other contributors is then missing. Every later party adds reports of devices, one
for each honest user that the guarantee needs: their noise is in the estimates.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.routes import SHARERS
from dpstream.pipeline.planning.parties import party_guarantees
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.pipeline.stages.windows import Window
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.sealed_messages import pack_reports, seal_rows
from dpstream.topics.shares import share_table, table_of
from tests.support.new_jobs import new_job
from tests.support.sealing import all_keys, ring, sealed_section, shares_section
from tests.support.world import World

OTHERS = 60
ITEMS = "abcdefgh"
STAGES = ((2,), (3,))


class _Replacing:
    """Patch that replaces the reports of all producers with more than one device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> None:
        complete, write = Window._complete, ShuffleStage._write
        replaced = 0

        def drop(self: Any, enrollment: bytes, drawing: Any) -> Any:
            nonlocal replaced
            if drawing.whole and drawing.punctuation.contributors > 1:
                replaced += len(drawing.words.sorted().values)
                drawing.words = self._multiset()
            return complete(self, enrollment, drawing)

        def add(self: Any, state: Any, decision: Any, words: Any) -> Any:
            job = self._job
            if shared:
                form = job.table_format
                locks = tuple(job.locks.of(party, 1) for party in SHARERS)
                table = np.zeros(form.cells, np.uint32)
                words.add(Messages(share_table(table, OTHERS, form, locks, secrets.token_bytes)))
            else:
                form = job.message_format
                cover_traffic = pack_reports(np.zeros((0, 1), form.dtype), replaced, form)
                ciphertexts = seal_rows(
                    cover_traffic, [job.locks.of("aggregate", 1), job.locks.of("stage 2", 1)]
                )
                words.add(Messages(ciphertexts))
            return (yield from write(self, state, decision, words))

        monkeypatch.setattr(Window, "_complete", drop)
        monkeypatch.setattr(ShuffleStage, "_write", add)


def job_of(section: dict[str, Any], epochs: int = 1) -> DeployedJob:
    return deploy_job(
        new_job(
            "sealed",
            "count_min",
            {"epsilon": 1, "delta": 1e-6, "domain": list(ITEMS)},
            epochs={"count": epochs, "start": "2023-01-01", "length": "PT1H"},
            shuffle={"minimum": OTHERS, "producers": 2},
            topics={"partitions": 1},
            sealed=section,
        ),
        deployment=bytes(range(16)),
        deployed_at=0,
    )


def added_counts(
    job: DeployedJob, party: str, keys: KeyRing, epoch: int = 1
) -> np.ndarray[Any, Any]:
    """Return the number of reports that a party adds to each cell of a window."""
    words = AddedDevices(job, party, keys).words(epoch)
    assert words is not None
    return table_of(words.values, words.counts, len(ITEMS)).astype(np.int64)


def _published(
    folder: Path, section: dict[str, Any], keys: KeyRing, item: int
) -> np.ndarray[Any, Any]:
    """Return the published counts of a window in which one of 61 contributors has `item`."""
    job = job_of(section)
    values = {"victim": {1: {"v": [item]}}, "rest": {1: {f"r{n}": [1] for n in range(OTHERS)}}}
    world = World(job, folder, values, keys=keys)  # type: ignore[arg-type]
    for name in values:
        world.close_epoch(name, 1)
    world.settle()
    world.settle()
    record = world.published()[1]
    world.shut()
    assert record.window_status is WindowStatus.RELEASED
    assert record.contributors > OTHERS
    assert isinstance(record.estimate, ItemEstimates)
    return np.asarray(record.estimate.values)


CASES = [
    pytest.param(sealed_section(STAGES), all_keys(STAGES), False, id="sealed, two stages"),
    pytest.param(shares_section((1, 2)), ring([1, 2]), True, id="shares"),
]


@pytest.mark.parametrize(("section", "keys", "shared"), CASES)
def test_sum_contains_the_noise_of_every_party_that_follows_the_attacker(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, Any],
    keys: KeyRing,
    shared: bool,
) -> None:
    job = job_of(section)
    assert len(job.later_parties) == 2
    noises = [added_counts(job, party, keys) for party in job.later_parties]
    _Replacing(monkeypatch, shared=shared)
    published = _published(tmp_path, section, keys, 3)
    mean, _ = job.law.noise.moments(3 * OTHERS + 1)  # type: ignore[attr-defined]
    left = published + mean - np.sum(noises, axis=0)
    # Apart from this noise, only the victim's message and its few dummies remain. Published values
    # are rounded to the digits that their errors justify.
    assert np.abs(left - np.round(left)).max() < 0.06
    assert left.round()[2] >= 1
    assert left.round().sum() < OTHERS / 2


@pytest.mark.parametrize(("section", "keys", "shared"), CASES)
def test_reports_added_by_a_party_have_the_required_noise(
    section: dict[str, Any], keys: KeyRing, shared: bool
) -> None:
    """Over many epochs, the cells of one party must have the mean and variance of the noise."""
    job = job_of(section, epochs=400)
    noise = job.law.noise  # type: ignore[attr-defined]
    for party in job.later_parties:
        drawn = np.array([added_counts(job, party, keys, epoch) for epoch in range(1, 401)])
        mean, variance = noise.moments(OTHERS)
        assert mean == noise.mean
        error = 5 * np.sqrt(variance / drawn.size)
        assert abs(drawn.mean() - mean) < error
        assert error < mean / 4
        # The variance of a Poisson variable is its mean.
        assert abs(drawn.var() / variance - 1) < 5 * np.sqrt(2.2 / drawn.size)


def test_added_reports_differ_by_party_and_window() -> None:
    job, keys = job_of(sealed_section(STAGES), epochs=2), all_keys(STAGES)
    one, other = job.later_parties
    again, elsewhere = (
        job_of(sealed_section(STAGES), epochs=2),
        job.model_copy(update={"deployment": bytes(16)}),
    )
    first = added_counts(job, one, keys).tolist()
    assert first == added_counts(again, one, keys).tolist()
    assert first != added_counts(job, one, keys, 2).tolist()
    assert first != added_counts(job, other, keys).tolist()
    assert first != added_counts(elsewhere, one, keys).tolist()


def test_number_of_added_ciphertexts_is_constant() -> None:
    job, keys = job_of(sealed_section(STAGES), epochs=3), all_keys(STAGES)
    added = AddedDevices(job, "stage 2", keys)
    sizes = [
        [len(chunk) for chunk in added.ciphertexts(epoch, Role.SHUFFLED)] for epoch in (1, 2, 3)
    ]
    assert sizes[0] == sizes[1] == sizes[2]
    drawn = added_counts(job, "stage 2", keys).sum()
    assert 0 < drawn < sum(sizes[0])


@pytest.mark.parametrize("section", [sealed_section(STAGES), shares_section((1, 2))])
def test_description_of_trust_states_the_effect_of_replaced_reports(
    section: dict[str, Any],
) -> None:
    job = job_of(section)
    law = job.law
    trust = job.guarantee_of(law).trust
    even_if = "even if any one shuffler or aggregator replaces or drops reports"
    assert trust.endswith(even_if) or f"{even_if}; " in trust
    (stage,) = (each for each in party_guarantees(job, law) if each.kind == "stage")
    assert "passes on every report" not in stage.assumes


def test_replacing_reports_in_a_local_job_breaks_only_its_shuffled_guarantee() -> None:
    """Parties of a local job add no devices: its guarantee holds whatever a shuffler replaces."""
    for central in (False, True):
        job = new_job(
            "local",
            "value_stream",
            {"epsilon": 1, "max_changes": 1},
            count=4,
            shuffle={"minimum": 100_000},
            sealed=sealed_section(STAGES),
            **({"central": {"epsilon": 0.5, "delta": 1e-6}} if central else {}),
        )
        trust = job.guarantee_of(job.calibrate()).trust
        assert "the guarantee fails" not in trust
        assert ("the guarantee of shuffled streams does not hold against" in trust) == central
