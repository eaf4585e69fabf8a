"""Test that the shuffle stage draws its noise once: all writes of a window are the same.

Two noisy versions of the same counts could be averaged, and their difference reveals the noise.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.randomizers.dummies import PoissonDummies
from dpstream.randomizers.noise_tables import poisson_table
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages, pack_messages
from dpstream.topics.names import Role
from tests.support import noisy_cells
from tests.support.killed_worlds import check_two_owners, check_writings_when_killed
from tests.support.world import DEPLOYMENT, Accidents, World, own_cells, world_job

CELLS = 12
KEY = NoiseKey(bytes(range(32)))


@pytest.fixture(autouse=True)
def noisy_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, noisy_cells.NAME, noisy_cells.NOISY_CELLS)


def deployed(key: NoiseKey | None = KEY, **shuffle: object) -> DeployedJob:
    shuffle = {"minimum": 2, **shuffle}
    job = world_job("noise", noisy_cells.NAME, {"cells": CELLS}, count=3, **shuffle)
    return job if key is None else job.model_copy(update={"noise_key": key.digest})


def world_of(job: DeployedJob, folder: Path, accidents: Accidents | None = None) -> World:
    return World(job, folder, own_cells(CELLS, 2), accidents or Accidents(), noise_key=KEY)


def dummies(job: DeployedJob, epoch: int) -> NDArray[np.int64]:
    return counts_of([StageNoise(job, KEY).dummies(epoch)])


def counts_of(chunks: list[Messages | None]) -> NDArray[np.int64]:
    counts = np.zeros(CELLS, np.int64)
    for words in chunks:
        assert words is not None
        np.add.at(counts, words.values[:, 0], 1 if words.counts is None else words.counts)
    return counts


def writings(world: World) -> dict[int, list[tuple[int, dict[int, Messages]]]]:
    by_attempt: dict[tuple[int, bytes], tuple[int, dict[int, Messages]]] = {}
    for partition in (0, 1):
        for value in world.log.values(Role.SHUFFLED, partition):
            chunk = decode_chunk(value)
            chunks = by_attempt.setdefault((chunk.epoch, chunk.attempt), (chunk.total, {}))[1]
            chunks[chunk.index] = chunk.words
    attempts: dict[int, list[tuple[int, dict[int, Messages]]]] = defaultdict(list)
    for (epoch, _), attempt in by_attempt.items():
        attempts[epoch].append(attempt)
    return attempts


def check_noise(world: World) -> int:
    written = 0
    for epoch, attempts in writings(world).items():
        expected = dummies(world.job, epoch)
        inside = world.manifests()[epoch].producers
        for producer, is_in in zip(world.registry(), inside, strict=False):
            if is_in:
                expected[list(world.values[producer.name][epoch].values())] += 1
        for total, chunks in attempts:
            counts = counts_of(list(chunks.values()))
            if len(chunks) == total:
                np.testing.assert_array_equal(counts, expected)
            assert (counts <= expected).all(), "an incomplete write has other noise"
            if world.job.shuffle.order == "sorted":
                same = [other for other in attempts if other[0] == total]
                assert len(same) == len(attempts)
                for index, words in chunks.items():
                    for _, others in attempts:
                        assert index not in others or identical(words, others[index])
        written += len(attempts)
    return written


def identical(one: Messages, other: Messages) -> bool:
    return pack_messages(one) == pack_messages(other)


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_released_window_contains_the_dummies_of_its_epoch(folder: Path, order: str) -> None:
    world = world_of(deployed(order=order), folder).run((1, 2))
    assert check_noise(world) == 2
    for epoch, record in world.published().items():
        assert record.headline is not None
        assert record.headline.value == CELLS + dummies(world.job, epoch).sum()
        assert (record.contributors, record.population) == (CELLS, CELLS)
    assert not np.array_equal(dummies(world.job, 1), dummies(world.job, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize(
    ("order", "keep"),
    [
        pytest.param("sorted", False, id="sorted, unflushed lost"),
        pytest.param("random", True, id="random, unflushed kept"),
        pytest.param("sorted", True, id="sorted, unflushed kept", marks=pytest.mark.verify),
        pytest.param("random", False, id="random, unflushed lost", marks=pytest.mark.verify),
    ],
)
def test_stage_recovers_when_killed_between_actions(
    folder: Path, order: str, keep: bool, stride: int
) -> None:
    job = deployed(order=order)

    def run(place: Path, accidents: Accidents) -> World:
        return world_of(job, place, accidents).run((1, 2))

    check_writings_when_killed(run, folder, check_noise, keep=keep, stride=stride)


@pytest.mark.verify
@pytest.mark.usefixtures("small_records")
def test_two_owners_of_a_partition_agree_in_every_interleaving(folder: Path) -> None:
    job = deployed()
    check_two_owners(lambda place: world_of(job, place), folder, check_noise)


@pytest.mark.usefixtures("small_records")
def test_fresh_noise_in_a_rewritten_window_is_detected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoiseKey, "generator", lambda *window: cryptographic_generator())
    world = world_of(deployed(), folder).run((1, 2))
    with pytest.raises(AssertionError):
        check_noise(world)


def test_window_below_the_minimum_is_suppressed_with_its_dummies(folder: Path) -> None:
    world = world_of(deployed(minimum=CELLS + 1), folder).run((1, 2))
    assert [record.window_status for record in world.published().values()] == [
        WindowStatus.SUPPRESSED
    ] * 2
    assert not world.log.values(Role.SHUFFLED, 0) + world.log.values(Role.SHUFFLED, 1)


def test_only_present_devices_count_as_contributors(folder: Path) -> None:
    world = world_of(deployed(minimum=CELLS), folder)
    absent = own_cells(CELLS, 2)
    del absent["south"][2][f"south{CELLS - 1}"]
    world.values = absent
    statuses = {
        epoch: record.window_status for epoch, record in world.run((1, 2)).published().items()
    }
    assert statuses == {1: WindowStatus.RELEASED, 2: WindowStatus.SUPPRESSED}
    assert world.manifests()[2].contributors == CELLS - 1
    assert world.manifests()[2].population == CELLS
    assert check_noise(world) == 1


def world_of_silent_devices(folder: Path) -> World:
    """Return a world whose devices have value 0 and send nothing, as the stage adds dummies."""
    values = {
        **deployed(key=None, minimum=CELLS).to_json(),
        "protocol": "shuffled_counts",
        "parameters": {"epsilon": 1, "delta": 1e-6, "dummies": "shuffle"},
    }
    job = deploy_job(make_job(values), deployment=DEPLOYMENT, deployed_at=0)
    world = world_of(job.model_copy(update={"noise_key": KEY.digest}), folder)
    world.values = {
        name: {epoch: dict.fromkeys(users, 0) for epoch, users in of_name.items()}
        for name, of_name in world.values.items()
    }
    return world


def test_devices_that_send_no_messages_are_contributors(folder: Path) -> None:
    world = world_of_silent_devices(folder).run((1, 2))
    for epoch in (1, 2):
        manifest = world.manifests()[epoch]
        assert (manifest.window_status, manifest.contributors) == (WindowStatus.RELEASED, CELLS)
        ((_, chunks),) = writings(world)[epoch]
        dummies = StageNoise(world.job, KEY).dummies(epoch)
        assert dummies is not None
        assert sum(words.messages for words in chunks.values()) == dummies.messages > 0


def test_heartbeats_count_devices_instead_of_messages(folder: Path) -> None:
    """Before a release, and after suppression, the number of messages is secret."""
    world = world_of_silent_devices(folder)
    world.values["north"][1]["north0"] = 1  # type: ignore[index]
    world.close_epoch("north", 1)
    for value in world.log.values(Role.REPORTS, world.job.topics.partition_of(1)):
        world.log.append(Append(Role.REPORTS, world.job.topics.partition_of(1), value))
    world.surviving("south", lambda: world.producer("south"))
    world.settle(["shuffle"])
    half = CELLS // 2
    stage = world.workers["shuffle"].stage
    heartbeat = stage.heartbeat()
    assert heartbeat["hides_messages"] is True
    assert heartbeat["windows"] == [
        {"epoch": 1, "devices": half, "grace_left": 60.0, "waits_for": ["south"]}
    ]
    for world.now in (61.0, 122.0):
        world.settle(["shuffle"])
    assert world.manifests()[1].window_status is WindowStatus.SUPPRESSED
    world.close_epoch("south", 1)
    world.settle(["shuffle"])
    counts = stage.heartbeat()["counts"]
    assert counts == {"reports": half, "late_reports": half, "windows suppressed": 1}
    world.shut()


def test_worker_does_not_start_without_the_right_key(folder: Path) -> None:
    world = world_of(deployed(), folder)
    for key in (None, NoiseKey(bytes(32))):
        world.noise_key = key
        with pytest.raises(WrongKeyError, match="noise key of"):
            world.stage("shuffle")
    world.noise_key = KEY
    world.stage("shuffle")


def test_job_deployed_without_a_key_rejects_any_key() -> None:
    with pytest.raises(WrongKeyError, match="expected no key"):
        StageNoise(deployed(key=None), KEY)


def test_noise_is_determined_by_the_key_and_deployment_and_epoch() -> None:
    job = deployed()
    elsewhere = job.model_copy(update={"deployment": bytes(16)})
    other = NoiseKey(bytes(32))
    rekeyed = job.model_copy(update={"noise_key": other.digest})
    drawn = [
        StageNoise(job, KEY).dummies(1),
        StageNoise(job, KEY).dummies(2),
        StageNoise(elsewhere, KEY).dummies(1),
        StageNoise(rekeyed, other).dummies(1),
    ]
    counts = [counts_of([words]).tolist() for words in drawn]
    assert len({tuple(each) for each in counts}) == 4
    noise = StageNoise(job, KEY)
    again = [noise.dummies(epoch) for epoch in (2, 1)]
    assert [counts_of([words]).tolist() for words in again] == [counts[1], counts[0]]


def test_each_horizon_has_its_own_noise() -> None:
    """The protocol gets the epoch within its horizon, but the randomness of the job's epoch."""
    values = deployed().to_json()
    values["epochs"] = {"count": 2, "renew": True}
    job = deploy_job(make_job(values), deployment=DEPLOYMENT, deployed_at=0)
    noise = StageNoise(job.model_copy(update={"noise_key": KEY.digest}), KEY)
    counts = {tuple(counts_of([noise.dummies(epoch)]).tolist()) for epoch in (1, 3, 5)}
    assert len(counts) == 3


def test_noise_from_a_given_key_is_the_same_in_every_version() -> None:
    assert KEY.digest.hex().startswith("630dcd2966c43366")
    words = {
        epoch: [f"{word:016x}" for word in random_words(KEY.generator(DEPLOYMENT, epoch))]
        for epoch in (1, 2**40)
    }
    assert words[1] == ["ee5cf2db824d3455", "ce019a373002df76", "507c5dc282e7da99"]
    assert words[2**40][0] == "9442905f0290c91b"
    poisson = {
        mean: poisson_table(mean).draw(8, KEY.generator(DEPLOYMENT, 3)).tolist()
        for mean in (0.1, 3.0, 1000.0)
    }
    assert poisson == {
        0.1: [0, 1, 0, 0, 0, 0, 0, 0],
        3.0: [4, 6, 3, 3, 3, 0, 1, 1],
        1000.0: [1015, 1049, 995, 1003, 1001, 939, 964, 965],
    }
    in_cells = {
        rate: np.bincount(PoissonDummies(rate).draw(1, 10, KEY.generator(DEPLOYMENT, 4))).tolist()
        for rate in (30.0, 1e5)
    }
    assert in_cells == {
        30.0: [3, 0, 1, 3, 1, 3, 2, 7, 3, 3],
        1e5: [9997, 10006, 9954, 10064, 9979, 9954, 9871, 10042, 9961, 9891],
    }
    assert dummies(deployed(), 1).tolist() == [2, 3, 6, 6, 5, 1, 3, 4, 5, 3, 2, 2]
    assert dummies(deployed(), 2).tolist() == [2, 5, 1, 2, 0, 2, 2, 2, 3, 4, 4, 6]


def random_words(generator: np.random.Generator) -> list[int]:
    words: list[int] = generator.integers(0, 1 << 64, 3, dtype=np.uint64).tolist()
    return words
