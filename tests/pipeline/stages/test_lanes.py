"""Epochs in lanes: one decision, and every lane exactly once, whoever owns which partition."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.actions import Action, Append, Commit, DeleteBelow, Flush, LogRecord, carry_out
from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.job_problems import JobError
from pipeline.jobs.noise_keys import KEY_BYTES, NoiseKey
from pipeline.results.released_windows import WindowIndex
from pipeline.simulation.memory import MemoryDriver, MemoryLog
from pipeline.simulation.simulate import SimulatedCluster
from pipeline.stages.epoch_log import EpochLog
from pipeline.stages.finished_windows import FinishedWindow
from pipeline.stages.lane_stage import LaneStage
from pipeline.stages.partial_log import PartialLog
from pipeline.stages.stage_noise import StageNoise
from randomizers.randomness import seeded_generator
from tests.support.replays import LiveRun, RetainingLog, replayed
from tests.support.world import Accidents, Owner, PartitionedWorld, World
from topics.batches import claimed_epoch, decode_batch
from topics.chunks import decode_chunk
from topics.frames import Kind, kind_of
from topics.manifests import Fate, decode_manifest
from topics.names import Role
from topics.partials import decode_partial, encode_partial
from topics.records import DeadLetter
from topics.words import Words, split_words

DEPLOYMENT = bytes(range(16))
CELLS = 30
EPOCHS = 2
PARTITIONS = 3


pytestmark = pytest.mark.usefixtures("cells_protocol")


def deployed(
    lanes: int = 2, partitions: int = PARTITIONS, *, earlier: bool = False, **shuffle: Any
) -> DeployedJob:
    """A job in lanes; an earlier one was deployed before lanes were added up one by one."""
    job = make_job(
        {
            "name": "lanes",
            "protocol": "cells",
            "parameters": {"cells": CELLS},
            "epochs": {"count": EPOCHS, "start": "2023-01-01", "length": "PT1H"},
            "shuffle": {"minimum": 10, "grace": "60 s", "producers": 2, **shuffle},
            "topics": {"partitions": partitions, "lanes": lanes},
        }
    )
    deployed = deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)
    if not earlier:
        return deployed
    values = json.loads(deployed.to_bytes())
    assert values.pop("partials_of_lanes") is True
    return DeployedJob.from_bytes(json.dumps(values).encode())


def cell_values() -> dict[str, dict[int, dict[str, int]]]:
    """Every user has a cell of its own: the north 0 to 14, the south 15 to 29."""
    return {
        name: {
            epoch: {f"{name}{cell}": cell for cell in range(first, first + 15)}
            for epoch in range(1, EPOCHS + 1)
        }
        for name, first in (("north", 0), ("south", 15))
    }


def begun(job: DeployedJob, folder: Path, accidents: Accidents | None = None) -> PartitionedWorld:
    return PartitionedWorld(job, folder, cell_values(), accidents or Accidents())


def run(world: PartitionedWorld) -> PartitionedWorld:
    for epoch in range(1, EPOCHS + 1):
        for name in ("north", "south"):
            world.close_epoch(name, epoch)
            world.settle()
    world.settle()
    world.settle()
    world.shut()
    return world


def counted(world: World, epoch: int) -> list[int]:
    aggregator = world.job.aggregator()
    for payload in world.integers().values():
        aggregator.merge(world.job.aggregator_from_bytes(payload))
    counts: list[int] = aggregator.counts[epoch].tolist()  # type: ignore[attr-defined]
    return counts


@pytest.mark.parametrize(
    ("lanes", "earlier"), [(1, False), (2, False), (3, False), (3, True)], ids=str
)
def test_every_cell_is_one(folder: Path, lanes: int, earlier: bool) -> None:
    world = run(begun(deployed(lanes, earlier=earlier), folder))
    assert sorted(world.published()) == [1, 2]
    for epoch, record in world.published().items():
        assert record.fate is Fate.RELEASED
        assert record.contributors == CELLS
        assert counted(world, epoch) == [1] * CELLS
    parts = {
        (manifest.epoch, manifest.instance)
        for manifest in map(decode_manifest, world.log.values(Role.MANIFESTS))
    }
    assert parts == set(product((1, 2), range(1, lanes + 1)))
    partials = map(decode_partial, world.log.values(Role.PARTIALS))
    assert sorted((each.epoch, each.lane) for each in partials) == sorted(
        product((1, 2), [1] if earlier else range(1, lanes + 1))
    )
    for partition in range(PARTITIONS):
        chunks = map(decode_chunk, world.log.values(Role.SHUFFLED, partition))
        assert {(chunk.epoch, chunk.instance) for chunk in chunks} == {
            (epoch, lane)
            for epoch, lane in product((1, 2), range(1, lanes + 1))
            if (epoch + (0 if earlier else lane - 1)) % PARTITIONS == partition
        }


def test_a_worker_that_owns_all_partitions_writes_all_lanes(folder: Path) -> None:
    world = begun(deployed(3), folder)
    for epoch in (1, 2):
        for name in ("north", "south"):
            world.close_epoch(name, epoch)
    for _ in range(2):
        World.settle(world)
    assert [counted(world, epoch) for epoch in (1, 2)] == [[1] * CELLS] * 2
    said = world.workers["shuffle"].stage.heartbeat()
    assert said["open_windows"] == said["open_lanes"] == 0
    counts = said["counts"]
    assert isinstance(counts, dict)
    assert (counts["reports"], counts["windows released"], counts["lanes"]) == (60, 2, 4)
    world.shut()


def test_lanes_lie_in_partitions_of_their_own_and_hold_reports_drawn_at_random(
    folder: Path,
) -> None:
    job = deployed(2)
    world = begun(job, folder)
    world.close_epoch("north", 1)
    held = [world.log.values(Role.REPORTS, partition) for partition in range(PARTITIONS)]
    assert held[0] == []
    assert [job.part_in(1, partition) for partition in range(PARTITIONS)] == [None, 1, 2]
    assert all(claimed_epoch(value) == 1 for values in held for value in values)
    assert [kind_of(values[-1]) for values in held[1:]] == [Kind.PUNCTUATION] * 2
    world.shut()


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches of a producer for every lane, several chunks of a lane."""

    def split_small(words: Words, payload_bytes: int = 0) -> list[Words]:
        return split_words(words, payload_bytes=8)

    for module in ("devices.epoch_records", "stages.multisets"):
        monkeypatch.setattr(f"pipeline.{module}.split_words", split_small)


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize(
    ("order", "keep", "codes"),
    [
        pytest.param("sorted", False, False, id="sorted, unflushed lost", marks=pytest.mark.slow),
        pytest.param("random", True, False, id="random, unflushed kept", marks=pytest.mark.verify),
        pytest.param("sorted", True, True, id="codes of drawings", marks=pytest.mark.verify),
    ],
)
def test_killed_after_every_single_action(
    folder: Path,
    order: str,
    keep: bool,
    codes: bool,
    stride: int,
    request: pytest.FixtureRequest,
) -> None:
    """Whoever dies, producer, the owner of any lane, aggregator or publisher: all is exactly 1."""
    if codes:
        request.getfixturevalue("coded")
    job = deployed(order=order)
    assert job.drawing_codes == codes
    undisturbed = run(begun(job, folder / "undisturbed"))
    actions = undisturbed.accidents.count
    assert actions > 150
    for strike in range(1, actions + 1, stride):
        place, accidents = folder / f"{strike}", Accidents(frozenset([strike]), keep)
        world = run(begun(job, place, accidents))
        assert world.published() == undisturbed.published(), f"killed after action {strike}"
        assert world.integers() == undisturbed.integers(), f"killed after action {strike}"
        assert len(world.log.values(Role.ESTIMATES)) == EPOCHS, f"killed after action {strike}"
        for partition in range(PARTITIONS):
            for role in (Role.REPORTS, Role.SHUFFLED):
                end = world.log.end(role, partition)
                committed = world.log.committed.get((role, partition), 0)
                assert committed == end, f"{role} after {strike}"


def late_run(
    job: DeployedJob, place: Path, strike: int = 0, *, keep: bool = False
) -> PartitionedWorld:
    """The south is late for epoch 1: grace passes, and then its batches arrive."""
    world = begun(job, place, Accidents(frozenset([strike]), keep))
    world.surviving("south", lambda: world.producer("south").enrol(["nobody"]))
    world.close_epoch("north", 1)
    world.settle()
    assert not world.manifests()
    decides = f"shuffle@{job.partition_of(1)}"
    for now in (61.0, 122.0):
        world.now = now
        world.settle([decides])
    # After the decision, and before whoever owns the other lane has seen it.
    world.close_epoch("south", 1)
    world.close_epoch("south", 2)
    world.close_epoch("north", 2)
    world.settle()
    world.settle()
    world.shut()
    return world


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost", marks=pytest.mark.verify),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.slow),
    ],
)
def test_a_late_producer_is_out_of_all_lanes_wherever_anybody_is_killed(
    folder: Path, keep: bool, stride: int
) -> None:
    """Also of that of a worker that has all of it before it knows that it is late."""
    job = deployed()
    undisturbed = late_run(job, folder / "undisturbed")
    assert undisturbed.manifests()[1].producers == (False, True)
    for strike in range(0, undisturbed.accidents.count + 1, stride):
        world = late_run(job, folder / str(strike), strike, keep=keep)
        assert sorted(world.published()) == [1, 2]
        assert world.published()[1].contributors == 15
        assert counted(world, 1) == [1] * 15 + [0] * 15, f"killed after {strike}"
        assert counted(world, 2) == [1] * 30, f"killed after {strike}"


def test_a_window_counts_only_when_all_of_its_lanes_are_there(folder: Path) -> None:
    world = begun(deployed(3), folder)
    for name in ("north", "south"):
        world.close_epoch(name, 1)
    # Of epoch 1 the lanes lie in partitions 1, 2 and 0.
    world.settle(["shuffle@0", "shuffle@2", "aggregate", "publish"])
    assert not world.log.values(Role.MANIFESTS), "who decides has not"
    world.settle(["shuffle@1", "aggregate", "publish", "shuffle@0", "aggregate", "publish"])
    assert len(world.log.values(Role.PARTIALS)) == 2
    # The owner of the last lane is killed after the decision, and so is who adds up and publishes.
    for name in ("shuffle@2", "aggregate", "publish"):
        world.kill(name)
    world.settle(["aggregate", "publish"])
    assert not world.published()
    assert not world.integers()
    world.settle(["shuffle@2", "aggregate", "publish"])
    assert counted(world, 1) == [1] * CELLS
    world.shut()


def test_the_deciding_lane_gets_nothing_before_the_others_are_acknowledged(folder: Path) -> None:
    """Also when several epochs are sent again together, in the order in which they were drawn."""
    job = deployed(3)
    world = begun(job, folder)
    producer = world.producer("north")
    producer.enrol(list(world.values["north"][1]))
    for epoch in (1, 2):
        producer.report(epoch, world.values["north"][epoch])
        # Drawn and stored; it dies before anything is sent.
        next(producer.close_steps(epoch))
    acknowledged: set[tuple[int | None, int | None]] = set()
    waiting: set[tuple[int | None, int | None]] = set()
    decided: list[int] = []

    def note(action: Action) -> None:
        if isinstance(action, Flush):
            acknowledged.update(waiting)
            waiting.clear()
        elif isinstance(action, Append):
            epoch = claimed_epoch(action.value)
            assert epoch is not None
            part = job.part_in(epoch, action.partition)
            if kind_of(action.value) is Kind.PUNCTUATION:
                waiting.add((epoch, part))
                decided.extend([epoch] if part == 1 else [])
            if part == 1:
                assert {(epoch, 2), (epoch, 3)} <= acknowledged

    carry_out(producer.resume(), note)
    assert decided == [1, 2]
    world.shut()


@pytest.mark.verify
@pytest.mark.parametrize("partition", [1, 2], ids=["of the deciding lane", "of another"])
def test_two_owners_of_a_partition_in_every_interleaving(folder: Path, partition: int) -> None:
    """The owner is paused anywhere, its successor gets anywhere, and the owner wakes up."""
    pause = interleavings = 0
    other = f"shuffle@{3 - partition}"
    while True:
        pause += 1
        progress = 0
        while True:
            world = begun(deployed(), folder / f"{pause}-{progress}")
            for name in ("north", "south"):
                world.close_epoch(name, 1)
            world.settle(["shuffle@1"] if partition == 2 else [])
            owner = Owner(world, "shuffle", 0.0, 61.0)
            owner.step(pause)
            ended = owner.done
            owner.driver.fenced = True
            successor = Owner(world, "shuffle", 62.0, 63.0)
            successor.step(progress)
            done = successor.done
            owner.step()
            successor.step()
            world.settle([other, f"shuffle@{partition}", "aggregate", "publish"])
            assert counted(world, 1) == [1] * CELLS, (pause, progress)
            world.shut()
            interleavings += 1
            if done:
                break
            progress += 1
        if ended:
            break
    assert interleavings > 100


@pytest.mark.verify
def test_two_owners_of_what_is_released_in_every_interleaving(folder: Path) -> None:
    """Who adds up is paused anywhere, its successor gets anywhere, and the first one wakes up."""
    pause = interleavings = 0
    while True:
        pause += 1
        progress = 0
        while True:
            world = begun(deployed(), folder / f"{pause}-{progress}")
            for name in ("north", "south"):
                world.close_epoch(name, 1)
            world.settle(["shuffle@1", "shuffle@2"])
            owner = Owner(world, "aggregate", 0.0)
            owner.step(pause)
            ended = owner.done
            owner.driver.fenced = True
            successor = Owner(world, "aggregate", 1.0)
            successor.step(progress)
            done = successor.done
            owner.step()
            successor.step()
            world.settle(["publish"])
            assert counted(world, 1) == [1] * CELLS, (pause, progress)
            world.shut()
            interleavings += 1
            if done:
                break
            progress += 1
        if ended:
            break
    assert interleavings > 100


def test_an_epoch_is_told_of_once_by_who_adds_up_its_last_lane(folder: Path) -> None:
    world, told = begun(deployed(3), folder), list[tuple[str, int]]()

    def listen(name: str, window: FinishedWindow) -> None:
        told.append((name, window.epoch))

    for name in ("north", "south"):
        world.close_epoch(name, 1)
    world.settle(["shuffle@1", "shuffle@2", "shuffle@0"])
    for number in (2, 0, 1):
        assert not told
        world.listeners["aggregate"] = partial(listen, f"aggregate@{number}")
        world.settle([f"aggregate@{number}"])
    assert told == [("aggregate@1", 1)]
    world.shut()


def test_partials_of_lanes_that_a_job_does_not_have_count_for_nothing(folder: Path) -> None:
    world = begun(deployed(2), folder)
    for name in ("north", "south"):
        world.close_epoch(name, 1)
    world.settle(["shuffle@1", "shuffle@2", "aggregate@1"])
    (own,) = map(decode_partial, world.log.values(Role.PARTIALS))
    assert own.lane == 1
    for lane in (1, 3):
        world.log.append(Append(Role.PARTIALS, 0, encode_partial(replace(own, lane=lane))))
    assert not world.integers()
    world.settle(["aggregate@2", "publish"])
    assert counted(world, 1) == [1] * CELLS
    world.shut()


def test_the_partial_of_a_lane_is_read_whole_and_by_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of the partials of two lanes never mix, though they lie between each other."""
    monkeypatch.setattr("topics.partials._PART_BYTES", 100)
    world = begun(deployed(2), folder)
    for name in ("north", "south"):
        world.close_epoch(name, 1)
    world.settle(["shuffle@1", "shuffle@2", "aggregate@1", "aggregate@2"])
    parts = [decode_partial(value) for value in world.log.values(Role.PARTIALS)]
    lanes = [[part for part in parts if part.lane == lane] for lane in (1, 2)]
    assert min(map(len, lanes)) > 1
    found: dict[int, bytes] = {}
    log = PartialLog(world.job, found.__setitem__)
    attempt = lanes[0][0].attempt
    mixed = [part for pair in zip_longest(*lanes) for part in pair if part is not None]
    for offset, part in enumerate(mixed):
        assert not found
        # Also if whoever adds up should name two attempts alike.
        log.apply(LogRecord(offset, encode_partial(replace(part, attempt=attempt))))
        assert log.has_parts == (not found)
    assert found == world.integers()
    world.shut()


def test_who_goes_on_from_a_checkpoint_has_the_lanes_that_came_before_it(folder: Path) -> None:
    """A lane may be added up before the lanes of an earlier epoch are, which then is checkpointed.

    Of its own epoch it waits for the others, and is read again by whoever goes on after it.
    """
    world = run(begun(deployed(2), folder))
    values = world.log.values(Role.PARTIALS)
    parts = {(part.epoch, part.lane): part for part in map(decode_partial, values)}
    log = MemoryLog(lambda: 0)
    driver = MemoryDriver(log)
    for value in world.log.values(Role.MANIFESTS):
        log.append(Append(Role.MANIFESTS, 0, value))
    for lane in ((2, 1), (1, 1), (1, 2)):
        log.append(Append(Role.PARTIALS, 0, encode_partial(parts[lane])))
    epochs = EpochLog(world.job)
    driver.run(epochs.find_end())
    first = driver.run(epochs.next())
    assert first is not None
    assert first.epoch == 1
    place = epochs.place()
    assert place is not None
    assert place.partials_offset == 0, "there lies a lane of the next epoch"
    log.append(Append(Role.PARTIALS, 0, encode_partial(parts[2, 2])))
    later = driver.run(EpochLog.going_on(world.job, place, 2))
    assert later is not None
    driver.run(later.find_end())
    found = driver.run(later.next())
    assert found is not None
    assert (found.epoch, found.counts) == (2, world.integers()[2])


def test_a_window_in_lanes_is_found_in_all_its_partitions_or_not_at_all(folder: Path) -> None:
    """Where to read on is known of each; and what retention takes of one takes the window."""
    world = run(begun(deployed(2), folder))
    driver, index = MemoryDriver(world.log), WindowIndex(world.job)
    driver.run(index.find_end())
    assert driver.run(index.find(1))
    assert [each.partition for each in index.places[1].parts] == [1, 2]
    driver.run(index.scan())
    assert index.floors == {0: 0, 1: 0, 2: 0}, "epochs 1 and 2 lie in 1 and 2, and in 2 and 0"
    held = [epoch for each in index._partitions.values() for epoch in each.attempts.epochs]
    assert not held, "of a window no more is held than where it lies"
    words = driver.run(index.read(1))
    assert words is not None
    assert words.values[:, 0].tolist() == list(range(CELLS))
    index.pass_over(1)
    ends = {number: world.log.end(Role.SHUFFLED, number) for number in range(PARTITIONS)}
    (second,) = (each.start for each in index.places[2].parts if each.partition == 2)
    assert index.floors == {0: 0, 1: ends[1], 2: second}
    assert second > 0
    index.pass_over(2)
    assert index.floors == ends
    for partition in (1, 2):
        log, again = RetainingLog(lambda: 0), WindowIndex(world.job)
        retaining = MemoryDriver(log)
        for number in range(PARTITIONS):
            for value in world.log.values(Role.SHUFFLED, number):
                log.append(Append(Role.SHUFFLED, number, value))
        retaining.run(again.find_end())
        retaining.run(again.scan())
        log.delete_below(Role.SHUFFLED, partition, ends[partition])
        assert retaining.run(again.read(1)) is None, "a part of it is not the window"


def test_of_both_stages_of_a_partition_the_lower_floor_is_committed_and_deleted(
    folder: Path,
) -> None:
    """Of partition 2 epoch 2 decides, and epoch 1 has its second lane there, which is not through.

    A worker that is killed then has everything again.
    """
    sent, world = begun(deployed(), folder / "sent"), begun(deployed(), folder / "read")
    for epoch, name in product((1, 2), ("north", "south")):
        sent.close_epoch(name, epoch)
    south = sent.producers["south"].enrolment
    for value in sent.log.values(Role.PRODUCERS):
        world.log.append(Append(Role.PRODUCERS, 0, value))
    late: list[Append] = []
    for partition in (2, 1, 0):
        for value in sent.log.values(Role.REPORTS, partition):
            append = Append(Role.REPORTS, partition, value)
            is_late = claimed_epoch(value) == 1 and south in value
            late.append(append) if is_late else world.log.append(append)
    assert len(late) == 4
    sent.shut()
    world.settle()
    # What is at offset 0 is of an open window: nothing is committed, and nothing deleted.
    assert world.log.committed.get((Role.REPORTS, 2), 0) == 0
    assert world.log.start(Role.REPORTS, 2) == 0
    assert list(world.manifests()) == [2]
    for number in range(PARTITIONS):
        world.kill(f"shuffle@{number}")
    world.settle()
    for append in late:
        world.log.append(append)
    world.settle()
    assert [counted(world, epoch) for epoch in (1, 2)] == [[1] * CELLS] * 2
    assert world.log.start(Role.REPORTS, 2) == world.log.end(Role.REPORTS, 2) > 0
    world.shut()


def test_floors_that_fall_back_are_not_committed() -> None:
    class Told:
        """A stage that commits what it is told."""

        role = Role.REPORTS

        def assign(self, partition: int, committed: int | None, now: float) -> Any:
            yield from ()
            return committed

        def revoke(self, partition: int) -> None:
            pass

        def record(self, partition: int, offset: int, *rest: Any) -> Any:
            yield Commit(self.role, partition, self.offsets[offset])  # type: ignore[attr-defined]
            yield DeleteBelow(self.role, partition, self.offsets[offset])  # type: ignore[attr-defined]

    first, others = Told(), Told()
    first.offsets, others.offsets = [5, 9, 9], [3, 4, 12]  # type: ignore[attr-defined]
    stage = LaneStage(first, others)  # type: ignore[arg-type]
    seen: list[Action] = []
    carry_out(stage.assign(0, 1, 0.0), seen.append)
    for offset in range(3):
        carry_out(stage.record(0, offset, b"", 0.0), seen.append)
    expected = [kind(Role.REPORTS, 0, at) for at in (3, 4, 9) for kind in (Commit, DeleteBelow)]
    assert seen == expected


def test_what_belongs_to_no_lane_is_refused_once(folder: Path) -> None:
    """Wherever it lies: the reports of a lane in another's place, and what nobody can read."""
    world = begun(deployed(), folder)
    world.close_epoch("north", 1)
    values = [value for p in (1, 2) for value in world.log.values(Role.REPORTS, p)]
    for value in (*values, b"nothing", values[0][:70]):
        world.log.append(Append(Role.REPORTS, 0, value))
    damaged = bytearray(world.log.values(Role.REPORTS, 2)[0])
    damaged[-1] ^= 1
    world.log.append(Append(Role.REPORTS, 2, bytes(damaged)))
    world.close_epoch("south", 1)
    world.settle()
    letters = [
        DeadLetter.from_record(record.value, record.headers)
        for record in world.log.read(Role.DEAD_LETTERS, 0, 0, 100).records
    ]
    assert sorted((letter.partition, letter.offset) for letter in letters) == sorted(
        [*((0, offset) for offset in range(len(values) + 2)), (2, 2)]
    )
    assert counted(world, 1) == [1] * CELLS
    world.shut()


def test_a_lane_is_a_part_of_what_is_published_and_of_a_replay(folder: Path) -> None:
    world = run(begun(deployed(3), folder))
    live = LiveRun(world.job, world.log)
    for source in (live.source, live.record(folder / "recording")):
        assert all(source.has_window(epoch) for epoch in (1, 2))
        assert source.window(1).values[:, 0].tolist() == list(range(CELLS))
        job, log, results = replayed(source)
        assert job.window_parts == 1
        assert results.integers == live.results.integers
        assert len(log.values(Role.SHUFFLED, 1)) == 1


KEY = NoiseKey(bytes(range(KEY_BYTES)))
COUNTS: dict[str, Any] = {
    "name": "lanes",
    "protocol": "shuffled_counts",
    "parameters": {"epsilon": 2, "delta": 1e-6, "changes": 1, "dummies": "poisson"},
    "epochs": {"count": 4},
    "shuffle": {"minimum": 1000},
    "topics": {"partitions": 4, "lanes": 3},
}


OF_DEVICES: dict[str, Any] = COUNTS["parameters"]
OF_STAGE: dict[str, Any] = {
    "epsilon": 2,
    "delta": 1e-6,
    "domain": ["a", "b", "c"],
    "dummies": "shuffle",
}


def with_dummies(parameters: dict[str, Any], lanes: int = 3) -> DeployedJob:
    values = {**COUNTS, "parameters": parameters, "topics": {"partitions": 4, "lanes": lanes}}
    return deploy_job(make_job(values), deployed_at=0, deployment=DEPLOYMENT)


def _seeded(seed: int, purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(seed, number, len(purpose))


@pytest.mark.parametrize(
    ("protocol", "parameters"),
    [
        ("future_rand", {"epsilon": 2, "changes": 2}),
        ("value_stream", {"epsilon": 2, "changes": 2}),
        ("shuffled_counts", OF_DEVICES),
        ("shuffled_counts", OF_STAGE),
    ],
    ids=["future_rand", "value_stream", "dummies of devices", "dummies of the stage"],
)
def test_what_is_published_is_what_is_published_without_lanes(
    protocol: str, parameters: dict[str, Any]
) -> None:
    """From the same draws: each lane's words are others', and their sums are the same integers."""
    published = []
    for lanes in (1, 3):
        values = {**COUNTS, "protocol": protocol, "parameters": parameters}
        values["topics"] = {"partitions": 4, "lanes": lanes}
        # What several lanes spare of delta is less than anything that constants are made of.
        job = deploy_job(make_job(values), deployed_at=0, deployment=DEPLOYMENT)
        cluster = SimulatedCluster(job, partial(_seeded, 5), noise_key=KEY)
        transport = MemoryDriver(cluster.log)
        with Producer(
            cluster.job, None, name="gateway", transport=transport, generators=partial(_seeded, 7)
        ) as producer:
            producer.enrol([f"{number}" for number in range(1_500)])
            for epoch in (1, 2, 3, 4):
                producer.report_all(epoch, (np.arange(1_500) % 3 == 0).astype(np.int64))
                producer.close(epoch)
                cluster.settle()
        cluster.settle()
        chunks = [
            decode_chunk(value)
            for partition in range(4)
            for value in cluster.log.values(Role.SHUFFLED, partition)
        ]
        assert {chunk.instance for chunk in chunks} == set(range(1, lanes + 1))
        published.append([record.headline for record in cluster.new_estimates()])
    assert len(published[0]) == 4
    for one, several in zip(*published, strict=True):
        assert (one.value, one.reports) == (several.value, several.reports)
        # Of a delta that is less in its last place.
        assert one.standard_deviation == pytest.approx(several.standard_deviation, rel=1e-12)


@pytest.mark.parametrize("parameters", [OF_DEVICES, OF_STAGE], ids=["of devices", "of the stage"])
def test_devices_whose_messages_are_a_secret_are_counted_once(parameters: dict[str, Any]) -> None:
    """By the stage of all lanes: each lane is told how many devices took part."""
    job = with_dummies(parameters)
    cluster = SimulatedCluster(job, partial(_seeded, 5), noise_key=KEY)
    with Producer(
        cluster.job, None, name="gateway", transport=MemoryDriver(cluster.log)
    ) as producer:
        producer.enrol([f"{number}" for number in range(1_500)])
        producer.report_all(1, np.arange(1_500) % 2)
        producer.close(1)
    cluster.settle()
    said = cluster.workers["shuffle"].stage.heartbeat()["counts"]
    assert isinstance(said, dict)
    assert said["reports"] == 1_500


def test_dummies_of_the_stage_are_in_all_lanes_and_those_of_one_window_together() -> None:
    """No lane shows reports that dummies do not hide, and none is drawn twice."""
    one, three = with_dummies(OF_STAGE, 1), with_dummies(OF_STAGE)
    key = {"noise_key": KEY.digest}
    whole = StageNoise(one.model_copy(update=key), KEY).dummies(2)
    noise = StageNoise(three.model_copy(update=key), KEY)
    lanes = [noise.dummies(2, lane) for lane in (1, 2, 3)]
    assert whole is not None
    total = np.zeros(int(whole.values.max()) + 1, np.int64)
    for lane in lanes:
        assert lane is not None
        assert abs(lane.messages - whole.messages / 3) < 8 * (whole.messages / 4) ** 0.5
        total[lane.values[:, 0]] += lane.occurrences.astype(np.int64)
    assert np.array_equal(total[whole.values[:, 0]], whole.occurrences)
    assert total.sum() == whole.messages


def words_of(records: Iterable[bytes]) -> np.ndarray:
    """How often each word is there, shape (256,)."""
    counts = np.zeros(256, np.int64)
    for value in records:
        if kind_of(value) is Kind.BATCH:
            words = decode_batch(value).words
            np.add.at(counts, words.values[:, 0], words.occurrences.astype(np.int64))
    return counts


def test_lanes_are_drawn_whatever_is_in_them() -> None:
    """Of each word each lane has its third; so it has of one producer's, and of one batch's."""
    job, log = with_dummies(OF_STAGE), MemoryLog()
    with Producer(
        job, None, name="gateway", transport=MemoryDriver(log), generators=partial(_seeded, 3)
    ) as producer:
        producer.enrol([f"{number}" for number in range(30_000)])
        producer.report_all(1, 1 + np.arange(30_000) % 3)
        producer.close(1)
    lanes = [words_of(log.values(Role.REPORTS, job.partition_of(1, lane))) for lane in (1, 2, 3)]
    total = np.sum(lanes, axis=0)
    assert np.count_nonzero(total > 1_000) >= 2
    for lane in lanes:
        assert (np.abs(lane - total / 3) < 8 * np.sqrt(total / 4 + 1)).all()


@pytest.mark.parametrize("parameters", [OF_DEVICES, OF_STAGE], ids=["of devices", "of the stage"])
def test_the_records_of_lanes_tell_nothing_of_values(parameters: dict[str, Any]) -> None:
    """Where messages are a secret: how many records a lane gets, and how large they are."""
    job, shapes = with_dummies(parameters), set()
    for seed, value in enumerate((0, 1, 0, 1)):
        log = MemoryLog()
        with Producer(
            job,
            None,
            name="gateway",
            transport=MemoryDriver(log),
            generators=partial(_seeded, seed),
        ) as producer:
            producer.enrol([f"{number}" for number in range(1_500)])
            producer.report_all(1, np.full(1_500, value))
            producer.close(1)
        lanes = [log.values(Role.REPORTS, partition) for partition in (1, 2, 3)]
        assert all(kind_of(lane[0]) is Kind.BATCH for lane in lanes)
        shapes.add(tuple(tuple(map(len, lane)) for lane in lanes))
    assert len(shapes) == 1
    assert len(set(next(iter(shapes)))) == 1, "and all of them the same"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"topics": {"partitions": 2, "lanes": 3}}, "give fewer lanes or more partitions"),
        ({"topics": {"lanes": 0}}, "a whole number from 1 to 16"),
        ({"topics": {"partitions": 20, "lanes": 17}}, "a whole number from 1 to 16"),
        ({"shuffle": {"minimum": 1000, "instances": 2}}, "leave out shuffle.instances, or"),
        (
            {
                "protocol": "single_message",
                "parameters": {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]},
                "crowds": {"by": "version", "values": ["1", "2"], "epsilon": 1, "delta": 1e-3},
            },
            "leave out crowds or topics.lanes",
        ),
        (
            {
                "epochs": {"count": 4, "start": "2023-01-01", "length": "PT1H"},
                "sealed": {"aggregate": "1" * 64, "stages": ["2" * 64]},
                "devices": {},
            },
            "leave out",
        ),
        (
            {"sealed": {"aggregate": "1" * 64, "stages": ["2" * 64]}},
            "leave out sealed, or topics.lanes",
        ),
        (
            {
                "protocol": "ldp_sgd",
                "parameters": {"epsilon": 1.9, "delta": 1e-5, "features": 2, "classes": 2},
            },
            "ldp_sgd learns",
        ),
    ],
)
def test_where_lanes_cannot_be_right_they_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_job({**COUNTS, **values}).calibrate()


def test_lanes_belong_to_what_a_deployment_is() -> None:
    job = deployed(3)
    assert DeployedJob.from_bytes(job.to_bytes()) == job
    assert b'"lanes":3' in job.to_bytes()
    assert b'"lanes":' not in deployed(1).to_bytes()
    assert job.fingerprint != deployed(2).fingerprint != deployed(1).fingerprint
    assert deployed(1).partition_of(5) == deployed(3).partition_of(5) == 2
