"""Test windows released as noisy sums: once, the same in every rewrite, and without messages.

Sums of the same messages with different noise could be averaged. The difference of two windows with
the same noise would reveal the difference of their messages.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    SUM_ZERO,
    ShuffledValueStreamLaw,
)
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.killed_worlds import check_two_owners, check_writings_when_killed
from tests.support.world import DEPLOYMENT, Accidents, World, world_job

USERS = 12
KEY = NoiseKey(bytes(range(32)))


def deployed(*, renew: bool = False, **shuffle: object) -> DeployedJob:
    parameters = {"epsilon": 1, "delta": 1e-6, "max_changes": 1, "dummies": "shuffle"}
    shuffle = {"minimum": 2, **shuffle}
    job = world_job("sums", "shuffled_counts", parameters, count=2, renew=renew, **shuffle)
    law = job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    assert law.boost == 0, "messages must follow from values"
    return job.model_copy(update={"noise_key": KEY.digest})


def user_values() -> dict[str, dict[int, dict[str, int]]]:
    """Return values: a third of the north has value 1 at the first epoch, two thirds at the second.

    The second horizon repeats the first.
    """
    half = USERS // 2
    return {
        name: {
            epoch: {f"{name}{user}": int(user % 3 < 2 - epoch % 2 + south) for user in range(half)}
            for epoch in (1, 2, 3, 4)
        }
        for south, name in enumerate(("north", "south"))
    }


def world_of(job: DeployedJob, folder: Path, accidents: Accidents | None = None) -> World:
    return World(job, folder, user_values(), accidents or Accidents(), noise_key=KEY)


def noise_of(job: DeployedJob, epoch: int) -> int:
    law = job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    return law.noise.draw(KEY.generator(DEPLOYMENT, epoch))


def check_sums(world: World) -> int:
    """Check that the stage released only the sum of the first manifest, and count the writes."""
    released: dict[tuple[int, bytes], list[object]] = defaultdict(list)
    for partition in (0, 1):
        for value in world.log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value)
            assert (chunk.index, chunk.total) == (0, 1)
            assert chunk.words.counts is None
            assert chunk.words.values.dtype == "<u8"
            released[chunk.epoch, chunk.attempt].append(chunk.words.values.tolist())
    for (epoch, _), sums in released.items():
        manifest = world.manifests()[epoch]
        assert manifest.window_status is WindowStatus.RELEASED
        total = sum(
            256 * value - 128
            for producer, is_in in zip(world.registry(), manifest.producers, strict=False)
            if is_in
            for value in world.values[producer.name][epoch].values()
            if value is not None
        )
        assert sums == [[[SUM_ZERO + total + noise_of(world.job, epoch)]]], epoch
    return len(released)


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_released_window_is_one_noisy_sum(folder: Path, order: str) -> None:
    world = world_of(deployed(order=order), folder).run((1, 2))
    assert check_sums(world) == 2
    for epoch, record in world.published().items():
        count = sum(sum(values[epoch].values()) for values in user_values().values())
        assert record.headline is not None
        assert record.headline.value == pytest.approx(count + noise_of(world.job, epoch) / 256)
        assert (record.contributors, record.headline.reports) == (USERS, USERS)
    assert noise_of(world.job, 1) != noise_of(world.job, 2)


def test_each_horizon_has_new_noise_and_budgets(folder: Path) -> None:
    """With the same noise, identical messages would have identical sums."""
    job = deployed(renew=True)
    world = world_of(job, folder)
    law = job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    for epoch in (1, 2, 3, 4):
        for name in ("north", "south"):
            world.close_epoch(name, epoch)
            left = world.producers[name]._randomizer.state_arrays()["left"]
            # Every epoch of a horizon uses 128 squared of the budget.
            assert (left == law.squared_norm_budget - 128**2 * (2 - epoch % 2)).all()
        world.settle()
    assert check_sums(world) == 4
    assert len({noise_of(job, epoch) for epoch in (1, 2, 3, 4)}) == 4
    for epoch, record in world.published().items():
        # Devices and estimates start again: errors of the previous horizon are not carried over.
        assert record.headline is not None
        count = sum(sum(values[epoch].values()) for values in user_values().values())
        assert record.headline.value == pytest.approx(count + noise_of(job, epoch) / 256)
    world.shut()


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True], ids=["unflushed lost", "unflushed kept"])
def test_stage_recovers_when_killed_between_actions(folder: Path, keep: bool, stride: int) -> None:
    job = deployed()

    def run(place: Path, accidents: Accidents) -> World:
        return world_of(job, place, accidents).run((1, 2))

    check_writings_when_killed(run, folder, check_sums, keep=keep, stride=stride)


@pytest.mark.verify
def test_two_owners_of_a_partition_agree_in_every_interleaving(folder: Path) -> None:
    job = deployed()
    check_two_owners(lambda place: world_of(job, place), folder, check_sums)


def test_fresh_noise_in_a_rewritten_window_is_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoiseKey, "generator", lambda *window: cryptographic_generator())
    world = world_of(deployed(), folder).run((1, 2))
    with pytest.raises(AssertionError):
        check_sums(world)


def test_window_below_the_minimum_stays_suppressed(folder: Path) -> None:
    world = world_of(deployed(minimum=USERS), folder)
    world.close_epoch("north", 1)
    sent = world.log.values(Role.REPORTS, world.job.topics.partition_of(1))
    world.surviving("south", lambda: world.producer("south"))
    for world.now in (0.0, 61.0, 122.0):
        world.settle()
    assert world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    world.close_epoch("south", 1)
    for value in sent:
        world.log.append(Append(Role.REPORTS, world.job.topics.partition_of(1), value))
    for world.now in (200.0, 261.0, 322.0):
        world.settle()
    assert world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    assert check_sums(world) == 0
    assert world.published()[1].headline is None
    world.shut()


def test_records_that_are_resent_after_a_release_are_not_added(folder: Path) -> None:
    """Resend records, as an operator might do with dead letters."""
    world = world_of(deployed(), folder)
    world.close_all(1)
    sent = world.log.values(Role.REPORTS, world.job.topics.partition_of(1))
    world.settle()
    before = world.integers()
    for value in sent:
        world.log.append(Append(Role.REPORTS, world.job.topics.partition_of(1), value))
    for world.now in (61.0, 122.0):
        world.settle()
    assert check_sums(world) == 1
    assert world.integers()[1] == before[1]
    world.shut()


def test_sum_stage_does_not_start_without_its_key() -> None:
    job = deployed()
    for key in (None, NoiseKey(bytes(32))):
        with pytest.raises(WrongKeyError, match="noise key of"):
            StageNoise(job, key)


def test_noisy_sums_of_parallel_shufflers_are_rejected() -> None:
    with pytest.raises(
        JobError,
        match="adds the dummy messages of this job, but the dummy messages of one parallel",
    ):
        deployed(instances=2)
