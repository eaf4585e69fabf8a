"""What a stage signs of a window that it withholds says no more than the window's manifest does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.actions import Action, Append
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.noise_keys import KEY_BYTES, NoiseKey
from pipeline.stages.stage import Stage
from tests.support.signed_stages import ChangedStage, SignedWorld
from topics.manifests import Fate, decode_manifest
from topics.names import Role
from topics.signed import Decided, Released, StageRecord, read_statement

KEY = NoiseKey(bytes(KEY_BYTES))
USERS, EPOCHS = 20, 3
JOBS: dict[str, tuple[dict[str, Any], tuple[object, object]]] = {
    "one message each": (
        {"protocol": "future_rand", "parameters": {"epsilon": 1, "changes": 2}},
        (0, 1),
    ),
    "noise of the stage": (
        {
            "protocol": "count_min",
            "parameters": {
                "epsilon": 0.5,
                "delta": 1e-6,
                "domain": ["a", "b", "c"],
                "rows": 2,
                "buckets": 8,
                "dummies": "shuffle",
            },
        },
        ("a", "c"),
    ),
}


@dataclass
class WatchedWorld(SignedWorld):
    """Remembers what the shuffle stage asks of the world outside, in order, and how much of it."""

    asked: list[tuple[object, ...]] = field(default_factory=list)

    def stage(self, name: str) -> Stage:
        made = super().stage(name)
        return ChangedStage(made, self._note) if name == "shuffle" else made

    def _note(self, action: Action) -> Iterator[Action]:
        size = len(action.value) if isinstance(action, Append) else None
        self.asked.append((type(action).__name__, getattr(action, "role", None), size))
        yield action


def run(job: DeployedJob, folder: Path, value: object) -> WatchedWorld:
    """Everybody holds the value."""
    held: Any = {f"u{number}": value for number in range(USERS)}
    values = {"one": dict.fromkeys(range(1, EPOCHS + 1), held)}
    world = WatchedWorld(job, folder, values, noise_key=KEY if job.needs_noise_key else None)
    for epoch in range(1, EPOCHS + 1):
        world.close_epoch("one", epoch)
        world.settle()
    world.shut()
    return world


@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("minimum", [USERS, USERS + 1], ids=["released", "withheld"])
def test_it_follows_from_manifests_and_released_words_alone(
    kind: str, minimum: int, tmp_path: Path
) -> None:
    asked, values = JOBS[kind]
    written = {"name": "small", **asked, "epochs": {"count": EPOCHS}}
    file = make_job({**written, "shuffle": {"minimum": minimum}, "topics": {"partitions": 1}})
    key = {"noise_key": KEY.digest} if "dummies" in asked["parameters"] else {}
    job = deploy_job(file, deployed_at=0, deployment=bytes(16)).model_copy(update=key)
    one, other = (run(job, tmp_path / str(value), value) for value in values)
    for world in (one, other):
        said = [read_statement(value).statement for value in world.log.values(Role.STAGES)]
        manifests = world.log.values(Role.MANIFESTS)
        fate = Fate.RELEASED if minimum == USERS else Fate.TOO_SMALL
        assert [decode_manifest(value).fate for value in manifests] == [fate] * EPOCHS
        decided = [each.manifest for each in said if isinstance(each, Decided)]
        assert decided == [hashlib.sha256(value).digest() for value in manifests]
        assert sum(isinstance(each, StageRecord) for each in said) == 1
        released = sum(isinstance(each, Released) for each in said)
        assert released == (EPOCHS if fate is Fate.RELEASED else 0)
    if minimum > USERS:
        # Nor by what comes when: the same is done in the same order, and takes as many bytes.
        assert one.log.values(Role.STAGES) == other.log.values(Role.STAGES)
        assert one.asked == other.asked
    else:
        assert one.log.values(Role.STAGES) != other.log.values(Role.STAGES), "words differ"
        steps = [[each[:2] for each in world.asked] for world in (one, other)]
        assert steps[0] == steps[1]
