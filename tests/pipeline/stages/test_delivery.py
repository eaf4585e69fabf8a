"""Test exactly-once delivery through all stages, even if they are killed after any action."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline import actions
from dpstream.pipeline.actions import Append, LogRecord, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.kafka.memory import MemoryWorker
from dpstream.topics.batches import (
    Batch,
    Punctuation,
    decode_batch,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Registration
from tests.support.killed_worlds import all_is_read, cell_counts, killed_worlds, run_with_late_south
from tests.support.world import (
    DEPLOYMENT,
    Accidents,
    Owner,
    World,
    interleavings,
    memory_folder,
    own_cells,
    world_job,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cells_protocol")]

EPOCHS = 4


@pytest.fixture(autouse=True)
def small_first_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read very few records of each log first, so that stages usually read further back."""
    monkeypatch.setattr(actions, "_READ_FIRST", 1)


def deployed(
    protocol: str, parameters: dict[str, object], last_epoch: int = EPOCHS, **shuffle: object
) -> DeployedJob:
    shuffle = {"minimum": 10, **shuffle}
    return world_job("delivery", protocol, parameters, count=last_epoch, **shuffle)


def boolean_values() -> dict[str, dict[int, dict[str, int]]]:
    generator = np.random.default_rng(7)
    return {
        name: {
            epoch: {
                f"{name}{user}": int(generator.integers(2))
                for user in range(30 if epoch < 3 else 40)
                if generator.random() < 0.9
            }
            for epoch in range(1, EPOCHS + 1)
        }
        for name in ("north", "south")
    }


def run(world: World) -> World:
    for name, epoch in [
        ("north", 1), ("north", 2), ("south", 1), ("north", 3),
        ("south", 2), ("south", 3), ("south", 4), ("north", 4),
    ]:  # fmt: skip
        world.close_epoch(name, epoch)
        world.settle()
    return world.finish()


FUTURE_RAND: tuple[str, dict[str, object]] = ("future_rand", {"epsilon": 2, "max_changes": 2})
CELLS: tuple[str, dict[str, object]] = ("cells", {"cells": 30})


def test_released_window_is_in_canonical_order(folder: Path) -> None:
    world = run(World(deployed(*CELLS), folder, own_cells(30, EPOCHS)))
    for partition in (0, 1):
        chunks = [decode_chunk(value) for value in world.log.values(Role.SHUFFLED, partition)]
        assert [chunk.total for chunk in chunks] == [1, 1]
        for chunk in chunks:
            assert (np.diff(chunk.words.values[:, 0].astype(np.int64)) >= 0).all()


@pytest.mark.parametrize(
    ("order", "keep"),
    [
        pytest.param("sorted", False, id="sorted, unflushed lost"),
        pytest.param("random", True, id="random, unflushed kept"),
        pytest.param("sorted", True, id="sorted, unflushed kept", marks=pytest.mark.verify),
        pytest.param("random", False, id="random, unflushed lost", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_when_killed_after_any_action(
    folder: Path, order: str, keep: bool, stride: int
) -> None:
    job = deployed(*FUTURE_RAND, order=order)

    def started_and_run(place: Path, accidents: Accidents) -> World:
        return run(World(job, place, boolean_values(), accidents))

    for world in killed_worlds(started_and_run, folder, keep=keep, stride=stride):
        assert world.accidents.count > 150
        assert len(world.published()) == len(world.log.values(Role.ESTIMATES)) == EPOCHS


@settings(max_examples=25, deadline=None)
@given(strikes=st.frozensets(st.integers(1, 250), min_size=2, max_size=12), keep=st.booleans())
def test_stages_recover_when_killed_many_times(strikes: frozenset[int], keep: bool) -> None:
    with memory_folder() as path:
        world = run(World(deployed(*CELLS), path, own_cells(30, EPOCHS), Accidents(strikes, keep)))
    for record in world.published().values():
        assert record.headline is not None
        assert (record.headline.ci95_low, record.headline.ci95_high) == (1.0, 1.0)
    assert len(world.published()) == EPOCHS


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def split_small(words: Messages, payload_bytes: int = 0) -> list[Messages]:
        return split_messages(words, payload_bytes=16)

    monkeypatch.setattr("dpstream.pipeline.devices.epoch_records.split_messages", split_small)
    monkeypatch.setattr("dpstream.pipeline.stages.multisets.split_messages", split_small)
    monkeypatch.setattr("dpstream.topics.partials._PART_BYTES", 200)


def rejected_places(world: World) -> set[tuple[str, int, int]]:
    records = world.log.read(Role.DEAD_LETTERS, 0, 0, world.log.end(Role.DEAD_LETTERS, 0)).records
    letters = (DeadLetter.from_record(record.value, record.headers) for record in records)
    return {(letter.topic, letter.partition, letter.offset) for letter in letters}


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("keep", [False, True], ids=["unflushed lost", "unflushed kept"])
def test_stages_recover_when_killed_between_records_of_a_window(
    folder: Path, keep: bool, stride: int
) -> None:
    """Data that is partly sent, written or aggregated is neither lost nor counted twice.

    Unreadable records become dead letters.
    """

    def short_run(place: Path, accidents: Accidents) -> World:
        world = World(deployed(*CELLS), place, own_cells(30, EPOCHS), accidents)
        for epoch in (1, 2):
            for name in ("north", "south"):
                world.log.append(Append(Role.REPORTS, epoch % 2, b"garbage"))
                world.log.append(Append(Role.SHUFFLED, epoch % 2, b"garbage"))
                world.close_epoch(name, epoch)
                world.settle()
        return world.finish()

    for world in killed_worlds(short_run, folder, keep=keep, stride=stride):
        assert sorted(world.published()) == [1, 2]
        assert len(rejected_places(world)) == 8 <= len(world.log.values(Role.DEAD_LETTERS))
        assert len(world.log.values(Role.SHUFFLED, 1)) >= 4 + 2
        assert len(world.log.values(Role.PARTIALS)) > 2 * len(world.integers()) == 4
        assert all_is_read(world, Role.REPORTS, Role.SHUFFLED), "leftovers block the commit offset"
        check_cells(world)


@pytest.mark.usefixtures("small_records")
def test_successor_of_an_aggregator_rereads_a_half_processed_window(folder: Path) -> None:
    """The aggregator commits and dies while the shuffler is between two chunks of a window."""
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    world.close_all(1)
    owner = Owner(world, "shuffle", 0.0)
    while len(owner.driver.pending) < 4:
        owner.step(1)
    arrived, owner.driver.pending = owner.driver.pending[:2], owner.driver.pending[2:]
    for chunk in arrived:
        world.log.append(chunk)
    world.settle(["aggregate"])
    world.kill("aggregate")
    owner.step()
    world.settle(["aggregate", "publish"])
    check_cells(world)
    assert sorted(world.published()) == [1]
    world.shut()


def expected_cells(world: World, epoch: int) -> np.ndarray:
    manifest = world.manifests()[epoch]
    counts = np.zeros(30, np.int64)
    if manifest.window_status is WindowStatus.RELEASED:
        for producer, inside in zip(world.registry(), manifest.producers, strict=False):
            if inside:
                counts[list(world.values[producer.name][epoch].values())] = 1
    return counts


def check_cells(world: World) -> None:
    records = world.published()
    assert sorted(records) == sorted(world.manifests())
    for epoch, record in records.items():
        np.testing.assert_array_equal(cell_counts(world, epoch), expected_cells(world, epoch))
        assert record.window_status is world.manifests()[epoch].window_status
        assert record.headline is not None
        assert record.headline.value == expected_cells(world, epoch).sum()


@pytest.mark.parametrize("keep", [False, True], ids=["unflushed lost", "unflushed kept"])
def test_late_producer_stays_excluded_when_the_worker_is_killed(
    folder: Path, keep: bool, stride: int
) -> None:
    def run_late(place: Path, accidents: Accidents) -> World:
        world = World(deployed(*CELLS), place, own_cells(30, EPOCHS), accidents)
        return run_with_late_south(world)

    for world in killed_worlds(run_late, folder, keep=keep, stride=stride):
        records = world.published()
        assert [records[1].contributors, records[2].contributors] == [15, 30]
        check_cells(world)


def test_window_is_the_same_if_it_is_written_after_late_records_arrive(folder: Path) -> None:
    """A worker decides and dies, the late producer sends, and then the successor starts."""
    released = []
    for late in (False, True):
        world = World(deployed(*CELLS), folder / str(late), own_cells(30, EPOCHS))
        world.surviving("south", lambda world=world: world.producer("south"))  # type: ignore[misc]
        world.close_epoch("north", 1)
        first = Owner(world, "shuffle", 0.0, 61.0, 122.0)
        while not world.manifests():
            assert not first.done
            first.step(1)
        assert not world.log.values(Role.SHUFFLED, 1)
        if late:
            world.close_epoch("south", 1)
        world.settle(["shuffle"])
        (chunk,) = map(decode_chunk, world.log.values(Role.SHUFFLED, 1))
        released.append(chunk.words.values.tolist())
        world.shut()
    assert released[0] == released[1]


def one_epoch(folder: Path, stage: str) -> World:
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    world.close_epoch("north", 1)
    world.surviving("south", lambda: world.producer("south"))
    if stage != "shuffle":
        world.close_epoch("south", 1)
        world.settle(("shuffle", "aggregate")[: 1 if stage == "aggregate" else 2])
    return world


@pytest.mark.parametrize(
    "stage", ["shuffle", pytest.param("aggregate", marks=pytest.mark.verify), "publish"]
)
def test_two_owners_of_a_partition_agree_in_every_interleaving(folder: Path, stage: str) -> None:
    """The owner is paused anywhere, its successor progresses to any point, and the owner resumes.

    The owner of the shuffle stage closes the epoch without the south; for its successor the south
    has arrived. The first manifest decides.
    """
    memberships: set[tuple[bool, ...]] = set()
    interleaved = 0
    pauses: set[int] = set()

    def meanwhile(world: World) -> None:
        if stage == "shuffle":
            world.close_epoch("south", 1)

    for pause, world in interleavings(
        lambda place: one_epoch(place, stage), folder, stage, meanwhile=meanwhile
    ):
        pauses.add(pause)
        check_cells(world)
        assert sorted(world.published()) == [1]
        memberships.add(tuple(world.manifests()[1].producers))
        interleaved += 1
    assert interleaved > len(pauses) > 5
    assert stage != "shuffle" or memberships == {(True, False), (True, True)}


def test_duplicated_batches_count_once(folder: Path) -> None:
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    world.close_epoch("north", 1)
    for value in world.log.values(Role.REPORTS, 1):
        for _ in range(3):
            world.log.append(Append(Role.REPORTS, 1, value))
    world.close_epoch("south", 1)
    world.settle()
    world.settle()
    check_cells(world)
    assert world.published()[1].contributors == 30
    world.shut()


def test_inadmissible_records_become_dead_letters(folder: Path) -> None:
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    world.close_epoch("north", 1)
    batch, _ = world.log.values(Role.REPORTS, 1)
    good = decode_batch(batch)
    rejected = {
        "unreadable": batch[:-1] + bytes([batch[-1] ^ 1]),
        "version": batch[:4] + b"\x09" + batch[5:],
        "oversized": batch + bytes(300_000),
        "fingerprint": encode_batch(replace(good, fingerprint=bytes(16))),
        "deployment": encode_batch(replace(good, deployment=bytes(16))),
        "enrollment": encode_batch(replace(good, enrollment=bytes(16))),
        "epoch": encode_batch(replace(good, epoch=2)),
        "protocol": encode_batch(replace(good, words=Messages(np.full((1, 1), 99, "<u2")))),
    }
    for value in rejected.values():
        world.log.append(Append(Role.REPORTS, 1, value))
    world.close_epoch("south", 1)
    world.settle()
    world.settle()
    check_cells(world)
    letters = [
        DeadLetter.from_record(record.value, record.headers)
        for record in world.log.read(Role.DEAD_LETTERS, 0, 0, 100).records
    ]
    assert [letter.reason.value for letter in letters] == list(rejected)
    assert [letter.value for letter in letters] == list(rejected.values())
    assert [letter.offset for letter in letters] == list(range(2, 2 + len(rejected)))
    assert {letter.topic for letter in letters} == {"delivery.reports"}
    assert all(letter.detail for letter in letters)
    world.shut()


def test_window_below_the_minimum_is_never_released(folder: Path) -> None:
    world = World(deployed(*CELLS, minimum=31), folder, own_cells(30, EPOCHS))
    world = run(world)
    for record in world.published().values():
        assert record.window_status is WindowStatus.SUPPRESSED
    assert not world.log.values(Role.SHUFFLED, 0)
    assert not world.log.values(Role.SHUFFLED, 1)


def test_records_do_not_become_late_because_a_worker_is_slow(folder: Path) -> None:
    """After the grace period, the worker reads to the current end of the log, then decides."""
    values = {**own_cells(30, EPOCHS), "east": {1: {"east0": 0}}}
    world = World(deployed(*CELLS), folder, values)
    world.surviving("east", lambda: world.producer("east"))
    world.close_epoch("north", 1)
    worker = MemoryWorker(world.stage("shuffle"), world.log)
    worker.run(worker.assign(1))
    worker.run(worker.poll())
    world.close_epoch("south", 1)
    worker.run(worker.stage.tick(61.0))
    assert not world.manifests()
    world.close_epoch("east", 1)
    while worker.run(worker.poll(62.0)):
        pass
    assert [producer.name for producer in world.registry()] == ["east", "north", "south"]
    assert world.manifests()[1].producers == (False, True, True)
    world.shut()


def test_window_waits_for_producers_registered_before_it_closes(folder: Path) -> None:
    world = World(deployed(*CELLS, producers=1), folder, own_cells(30, EPOCHS))
    world.producer("north")
    worker = MemoryWorker(world.stage("shuffle"), world.log)
    worker.run(worker.assign(1))
    world.producer("south")
    world.close_epoch("north", 1)
    worker.run(worker.drain())
    assert not world.manifests()
    world.close_epoch("south", 1)
    worker.run(worker.drain())
    assert world.manifests()[1].contributors == 30
    world.shut()


def test_grace_period_starts_with_the_first_record_of_an_epoch(folder: Path) -> None:
    """This also holds if a later epoch was decided first, and records arrive much later."""
    values = {**own_cells(30, EPOCHS), "east": {1: {"east0": 0}}}
    world = World(deployed(*CELLS, minimum=1), folder, values)
    world.producer("east").leave(1)
    world.close_all(3)
    for world.now in (0.0, 59.0):
        world.settle()
    assert sorted(world.manifests()) == [3], "a deregistered producer must not delay windows"
    world.close_epoch("east", 1)
    for world.now in (59.0, 61.0, 118.0):
        world.settle()
        assert 1 not in world.manifests()
    world.now = 119.0
    world.settle()
    assert world.manifests()[1].contributors == 1
    world.shut()


def workers_of_one_partition_each(world: World) -> tuple[MemoryWorker, MemoryWorker]:
    workers = [MemoryWorker(world.stage("shuffle"), world.log) for _ in range(2)]
    for partition, worker in enumerate(workers):
        worker.run(worker.assign(partition))
    return workers[0], workers[1]


def test_limit_on_epochs_depends_on_the_manifests_of_all_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.pipeline.stages.window_decision.EPOCHS_AHEAD", 2)
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    even, odd = workers_of_one_partition_each(world)
    for epoch in (1, 4):
        world.close_all(epoch)
    odd.run(odd.drain())
    assert sorted(world.manifests()) == [1]
    even.run(even.drain())
    assert sorted(world.manifests()) == [1, 4]
    assert not world.log.values(Role.DEAD_LETTERS)
    world.shut()


def run_to_manifest(worker: MemoryWorker, steps: Steps[None]) -> None:
    """Run steps until a manifest has been appended; it is not flushed yet."""
    action = next(steps)
    while not (isinstance(action, Append) and action.role is Role.MANIFESTS):
        action = steps.send(worker.driver.carry_out(action))
    worker.driver.carry_out(action)


def test_epochs_too_far_ahead_are_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.pipeline.stages.window_decision.EPOCHS_AHEAD", 2)
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    for epoch in (3, 4):
        world.close_epoch("north", epoch)
    world.close_epoch("south", 3)
    world.settle(["shuffle"])
    assert sorted(world.manifests()) == [3]
    letters = [
        DeadLetter.from_record(record.value, record.headers)
        for record in world.log.read(Role.DEAD_LETTERS, 0, 0, 9).records
    ]
    assert [letter.reason.value for letter in letters] == ["epoch", "epoch"]
    assert decode_batch(letters[0].value).epoch == 4
    world.shut()


@pytest.mark.parametrize("decided", [False, True], ids=["open", "decided"])
def test_first_manifest_states_the_first_epoch(folder: Path, decided: bool) -> None:
    """The south registers for epoch 2 while epoch 3 becomes the first epoch.

    The window of epoch 2 is then open with another worker, or its manifest comes second.
    """
    values = own_cells(30, EPOCHS)
    values["north"] = {epoch: values["north"][epoch] for epoch in (3, 4)}
    values["south"] = {epoch: values["south"][epoch] for epoch in (2, 3, 4)}
    world = World(deployed(*CELLS, producers=1), folder, values)
    even, odd = workers_of_one_partition_each(world)
    world.close_epoch("north", 3)
    odd_steps, even_steps = odd.drain(), even.drain()
    run_to_manifest(odd, odd_steps)
    world.close_epoch("south", 2)
    if decided:
        run_to_manifest(even, even_steps)
    else:
        even.run(even.poll())
    odd.run(odd_steps)
    even.run(even_steps)
    for name in ("south", "north"):
        world.close_epoch(name, 4)
    even.run(even.drain())
    world.settle()
    assert next(iter(world.manifests())) == 3
    assert sorted(world.published()) == [3, 4]
    assert world.log.committed[Role.PARTIALS, 0] == world.log.end(Role.PARTIALS, 0)
    assert not [
        chunk for chunk in world.log.values(Role.SHUFFLED, 0) if decode_chunk(chunk).epoch == 2
    ]
    world.shut()


def test_raw_records_are_deleted_when_the_successor_of_a_worker_finishes(folder: Path) -> None:
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    world.close_all(1)
    owner = Owner(world, "shuffle", 0.0)
    while not world.manifests():
        owner.step(1)
    assert world.log.values(Role.REPORTS, 1)
    world.settle()
    world.settle()
    check_cells(world)
    assert not world.log.values(Role.REPORTS, 1)
    world.shut()


def hostile_records(job: DeployedJob, enrollment: bytes) -> dict[str, bytes]:
    billions = Messages(np.array([[0], [1]], "<u2"), np.full(2, 2**32 - 1, "<u4"))
    return {
        "too many reports": encode_batch(
            Batch(job.fingerprint, job.deployment, bytes(16), enrollment, 1, billions)
        ),
        "too many devices": encode_punctuation(
            Punctuation(job.fingerprint, job.deployment, enrollment, 1, 0, 2**40, 2**40, bytes(8))
        ),
    }


@pytest.mark.parametrize("what", hostile_records(deployed(*FUTURE_RAND), bytes(16)))
def test_record_that_exceeds_a_limit_does_not_block_windows(folder: Path, what: str) -> None:
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    enrollment = world.producer("south").enrollment
    hostile = hostile_records(world.job, enrollment)[what]
    world.log.append(Append(Role.REPORTS, 1, hostile))
    world.close_all(1)
    world.settle()
    world.settle()
    check_cells(world)
    assert world.published()[1].contributors == 30
    (letter,) = world.log.read(Role.DEAD_LETTERS, 0, 0, 9).records
    assert DeadLetter.from_record(letter.value, letter.headers).reason.value == "punctuation"
    assert letter.value == hostile
    world.shut()


def test_only_the_first_registration_of_a_producer_name_counts() -> None:
    registry = ProducerRegistry(deployed(*CELLS))
    first, second = bytes([1] * 16), bytes([2] * 16)
    for name, enrollment in (("north", first), ("north", second), ("south", first)):
        registry.apply(LogRecord(0, Registration(DEPLOYMENT, name, enrollment, 1).to_bytes()))
    assert [(producer.name, producer.enrollment) for producer in registry] == [("north", first)]
    assert registry.find(second) is None


def test_registrations_beyond_the_limit_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpstream.pipeline.jobs.producer_registry.PRODUCERS_MAX", 3)
    registry = ProducerRegistry(deployed(*CELLS))
    for number in range(4):
        enrollment = number.to_bytes(16, "big")
        registry.apply(
            LogRecord(0, Registration(DEPLOYMENT, f"{number}", enrollment, 1).to_bytes())
        )
    assert [producer.name for producer in registry] == ["0", "1", "2"]
    assert registry.find(number.to_bytes(16, "big")) is None


GARBAGE = (
    b"",
    bytes(10),
    b"dpst\x01",
    b"\xff" * 300_000,
    b"[" * 100_000,
    b"[]",
    b"7",
    b'{"version":1,"type":"registration"}',
    b'{"version":1,"deployment":"00","epoch":Infinity,"window_status":"empty","closed_at":0,'
    b'"contributors":0,"population":0,"estimate":null,"guarantee":{}}',
)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.STATUS])
def test_garbage_in_any_topic_does_not_block_stages(folder: Path, role: Role) -> None:
    world = World(deployed(*CELLS), folder, own_cells(30, EPOCHS))
    for epoch in range(1, EPOCHS + 1):
        for value in GARBAGE:
            world.log.append(Append(role, 0, value))
        world.close_all(epoch)
        world.settle()
    world.settle()
    records = world.published()
    assert sorted(records) == [1, 2, 3, 4]
    for epoch, record in records.items():
        assert record.contributors == 30
        np.testing.assert_array_equal(cell_counts(world, epoch), np.ones(30))
    world.shut()
