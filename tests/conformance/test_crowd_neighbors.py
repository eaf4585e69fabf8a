"""Everything but the randomized view is independent of users' crowds.

Like `test_neighbors`, for inputs that also differ in crowds. The randomized view consists of the
remaining messages of each crowd; their number and selection are copied from the first run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpstream.pipeline.stages.shuffle_decision import ShuffleDecision
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages
from tests.support.commands import Commands
from tests.support.memory_run import run_in_memory
from tests.support.neighbor_inputs import CHANGED, PRODUCERS, USERS, Inputs
from tests.support.new_jobs import hidden_sizes
from tests.support.public_facts import OBSERVABLES
from tests.support.public_view import SameRelease, Seen

LAST_EPOCH = 3
CROWDS = ("old", "new")
VARIANTS = ("reference", "other crowds", "other values", "no row to use")
JOB: dict[str, Any] = {
    "name": "crowds",
    "protocol": "single_message",
    "parameters": {"epsilon": 4, "delta": 0.05, "domain": ["a", "b"]},
    "epochs": {"count": LAST_EPOCH},
    "topics": {"partitions": 2},
    **hidden_sizes(CROWDS, 20, 0.5),
}


@dataclass(frozen=True, slots=True)
class SameLeft(SameRelease):
    """Keep the messages in every window that remained in the first run."""

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left = StageNoise.left

        def left_first(noise: StageNoise, epoch: int, words: Messages) -> Messages:
            path = self.folder / f"{epoch}.pickle"
            if not path.exists():
                path.write_bytes(pickle.dumps(left(noise, epoch, words)))
            first: Messages = pickle.loads(path.read_bytes())
            return first

        monkeypatch.setattr(StageNoise, "left", left_first)


def write_inputs(folder: Path, variant: str, minimum: int) -> Inputs:
    folder.mkdir(parents=True)
    job = folder / "job.yaml"
    shuffle = {"minimum": minimum, "producers": len(PRODUCERS)}
    job.write_text(yaml.safe_dump({**JOB, "shuffle": shuffle}))
    user_lists, rows = {}, {}
    for producer, users in USERS.items():
        user_lists[producer] = folder / f"{producer}.txt"
        user_lists[producer].write_text("".join(f"{user}\n" for user in users))
        rows[producer] = folder / f"{producer}.csv"
        lines = (line for number, user in enumerate(users) for line in _rows(user, number, variant))
        rows[producer].write_text("".join(["user,epoch,value,version\n", *lines]))
    return Inputs(job, user_lists, rows)


def _rows(user: str, number: int, variant: str) -> Iterator[str]:
    changed = user in CHANGED
    if changed and variant == "no row to use":
        yield from (f"{user},1,a,no such\n", f"{user},soon,a,old\n", f"{user},2,c,new\n")
        return
    for epoch in range(1, LAST_EPOCH + 1):
        crowd, item = (number + epoch) % 2, (number * epoch) % 3
        if changed and variant == "other crowds":
            crowd = 1 - crowd
        if changed and variant == "other values":
            item = (item + 1) % 3
        yield f"{user},{epoch},{('', 'a', 'b')[item]},{CROWDS[crowd]}\n"


def compare(folder: Path, dpstream: Commands, minimum: int) -> list[int]:
    release = SameLeft(folder / "released")
    release.folder.mkdir(parents=True)
    first: Seen | None = None
    for variant in VARIANTS:
        inputs = write_inputs(folder / f"input {variant}", variant, minimum)
        seen = run_in_memory(folder / variant, inputs, release, dpstream)
        first = first or seen
        assert seen.keys() == {each.name for each in OBSERVABLES}
        for name, observed in seen.items():
            assert observed == first[name], (name, variant)
    return release.epochs


@pytest.mark.parametrize(("minimum", "released"), [(3, [1, 2, 3]), (100, [])])
def test_observations_depend_on_crowds_only_through_undeleted_messages(
    minimum: int, released: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path, Commands(capsys), minimum) == released


def test_size_of_a_crowd_in_a_manifest_is_detected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = ShuffleDecision.manifest

    def with_size(decision: ShuffleDecision, window: Any, *rest: Any) -> Manifest:
        made = manifest(decision, window, *rest)
        law = decision._job.crowds_law
        assert law is not None
        size = int((law.crowds_of(window.words.sorted().values) == 1).sum())
        return replace(made, timestamp=made.timestamp + size)

    monkeypatch.setattr(ShuffleDecision, "manifest", with_size)
    with pytest.raises(AssertionError, match="other crowds"):
        compare(tmp_path, Commands(capsys), 3)
