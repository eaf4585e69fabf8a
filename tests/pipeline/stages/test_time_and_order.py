"""Test a gateway ahead of time, wrong clocks, and records with invalid epochs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpstream.pipeline.actions import Append, LogRecord, Steps
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.batches import Punctuation, encode_punctuation
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial
from dpstream.topics.records import DeadLetter, Deregistration, Drain, Reason, Registration
from tests.support import cells
from tests.support.new_jobs import new_job
from tests.support.world import BEGUN, World, memory_folder

pytestmark = pytest.mark.usefixtures("cells_protocol")

DEPLOYMENT = bytes(range(16))
HOUR = 3600.0
NAMES = ("north", "south", "east", "west")


def deployed(
    epochs: int = 4096,
    *,
    calendar: bool = False,
    order: str = "sorted",
    minimum: int = 1,
    **keys: object,
) -> DeployedJob:
    """Deploy a job; with a calendar, epochs last an hour, and epoch 1 starts with the world."""
    times: dict[str, object] = {"start": "2023-11-14T22:13:20Z", "length": "PT1H"}
    job = new_job(
        "ordered",
        cells.NAME,
        {"cells": 8},
        epochs={"count": epochs, **(times if calendar else {}), **keys},
        shuffle={"minimum": minimum, "grace": "60 s", "producers": 4, "order": order},
        topics={"partitions": 2},
    )
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


def values(epochs: int = 4096) -> dict[str, dict[int, dict[str, int]]]:
    return {
        name: {
            epoch: {f"{name}{cell}": cell for cell in (2 * number, 2 * number + 1)}
            for epoch in range(1, epochs + 1)
        }
        for number, name in enumerate(NAMES)
    }


def settle(world: World, seconds: float = 0.0, every: float = 30.0) -> None:
    end = world.now + seconds
    while True:
        world.settle()
        if world.now >= end:
            return
        world.now = min(end, world.now + every)


def close(world: World, epoch: int, *names: str) -> None:
    for name in names or NAMES:
        world.close_epoch(name, epoch)


def heartbeat(world: World) -> dict[str, object]:
    return dict(world.worker("shuffle").stage.heartbeat())


def letters(world: World) -> list[DeadLetter]:
    end = world.log.end(Role.DEAD_LETTERS, 0)
    records = world.log.read(Role.DEAD_LETTERS, 0, 0, end).records
    return [DeadLetter.from_record(record.value, record.headers) for record in records]


def test_producer_ahead_of_time_does_not_close_windows_of_other_producers(folder: Path) -> None:
    world = World(deployed(), folder, values())
    for epoch in range(1, 6):
        close(world, epoch)
    settle(world)
    close(world, 2000, "north")
    settle(world, 72 * HOUR, every=HOUR)
    assert sorted(world.manifests()) == [1, 2, 3, 4, 5]
    assert heartbeat(world)["ahead"] == [{"producer": "north", "epochs": 1995}]

    for epoch in (6, 7, 8, 9):
        close(world, epoch, "south", "east", "west")
    settle(world)
    assert sorted(world.manifests()) == [1, 2, 3, 4, 5], "windows must still wait for the north"
    settle(world, 300)
    decided = world.manifests()
    assert sorted(decided) == [*range(1, 10)]
    assert [decided[epoch].contributors for epoch in (6, 7, 8, 9)] == [6, 6, 6, 6]
    assert not letters(world)
    assert world.published().keys() == decided.keys()
    world.shut()


def test_half_of_the_producers_cannot_advance_the_epoch(folder: Path) -> None:
    world = World(deployed(), folder, values())
    close(world, 1)
    settle(world)
    for epoch in (5, 6):
        close(world, epoch, "north", "south")
    settle(world, 24 * HOUR, every=HOUR)
    assert sorted(world.manifests()) == [1]
    close(world, 5, "east")
    settle(world, 300)
    decided = world.manifests()
    assert {epoch: decided[epoch].window_status for epoch in (2, 3, 4)} == dict.fromkeys(
        (2, 3, 4), WindowStatus.EMPTY
    )
    assert decided[5].producers.count(True) == 3
    world.shut()


def test_retiring_missing_producers_makes_a_window_due(folder: Path) -> None:
    world = World(deployed(), folder, values())
    close(world, 1)
    settle(world)
    close(world, 2, "north", "south")
    settle(world, HOUR)
    assert sorted(world.manifests()) == [1]
    for name in ("east", "west"):
        deregistration = Deregistration(DEPLOYMENT, world.producer(name).enrollment, 1)
        world.log.append(Append(Role.PRODUCERS, 0, deregistration.to_bytes()))
    settle(world)
    assert world.manifests()[2].contributors == 4
    world.shut()


def test_window_below_the_minimum_is_suppressed_when_other_producers_retire(folder: Path) -> None:
    """A writer to the producers topic can deregister others, drain them, and force decisions."""
    world = World(deployed(minimum=3), folder, values())
    close(world, 1)
    settle(world)
    close(world, 2, "north")
    for partition in range(2):
        end = world.log.end(Role.REPORTS, partition)
        world.log.append(Append(Role.PRODUCERS, 0, Drain(DEPLOYMENT, partition, end).to_bytes()))
    settle(world)
    for name in ("south", "east", "west"):
        deregistration = Deregistration(DEPLOYMENT, world.producer(name).enrollment, 1)
        world.log.append(Append(Role.PRODUCERS, 0, deregistration.to_bytes()))
    settle(world)
    close(world, 3)
    settle(world)
    decided = world.manifests()
    assert [decided[epoch].window_status for epoch in (1, 2, 3)] == [
        WindowStatus.RELEASED,
        WindowStatus.SUPPRESSED,
        WindowStatus.SUPPRESSED,
    ]
    released = {
        decode_chunk(value).epoch
        for partition in range(2)
        for value in world.log.values(Role.SHUFFLED, partition)
    }
    assert released == {1}
    world.shut()


def test_retired_producer_does_not_block_the_commit_offset(folder: Path) -> None:
    world = World(deployed(), folder, values())
    close(world, 1)
    close(world, 2000, "north")
    settle(world)
    assert heartbeat(world)["open_windows"] == 1
    deregistration = Deregistration(DEPLOYMENT, world.producer("north").enrollment, 1)
    world.log.append(Append(Role.PRODUCERS, 0, deregistration.to_bytes()))
    settle(world)
    assert heartbeat(world)["open_windows"] == 0
    assert world.log.committed[Role.REPORTS, 0] == world.log.end(Role.REPORTS, 0)
    world.shut()


@pytest.mark.parametrize("order", ["sorted", "random"])
def test_windows_of_producers_ahead_of_time_use_bounded_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setattr("dpstream.pipeline.stages.raw_stage.MAX_BUFFERED_BYTES", 40)
    world = World(deployed(64, order=order), folder, values(64))
    buffered = []
    for epoch in range(1, 33):
        close(world, epoch, "north", "south")
        settle(world)
        stage = world.worker("shuffle").stage
        windows = [w for p in stage._partitions.values() for w in p.windows.values()]  # type: ignore[attr-defined]
        buffered.append(sum(window.buffered_bytes for window in windows))
        assert len(windows) == epoch
    assert 0 < max(buffered) <= 40
    for epoch in range(1, 33):
        close(world, epoch, "east", "west")
    settle(world)
    settle(world)
    assert sorted(world.published()) == [*range(1, 33)]
    for epoch, payload in world.integers().items():
        aggregator = world.job.aggregator_from_bytes(payload)
        np.testing.assert_array_equal(aggregator.counts[epoch], np.ones(8))  # type: ignore[attr-defined]
    world.shut()


@settings(max_examples=10, deadline=None)
@given(
    jumps=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    pauses=st.lists(st.floats(0.0, 5_000.0), min_size=4, max_size=4),
)
def test_single_producer_cannot_exclude_others_from_an_epoch(
    jumps: list[int], pauses: list[float]
) -> None:
    with memory_folder() as path:
        world = World(deployed(), path, values())
        epochs = iter(jumps)
        for epoch, pause in enumerate(pauses, 1):
            ahead = world.producer("north").closed_epoch + next(epochs, 0)
            if ahead > world.producer("north").closed_epoch:
                close(world, min(ahead, 4096), "north")
            settle(world, pause, every=500.0)
            close(world, epoch, "south", "east", "west")
            settle(world, 200)
        settle(world, 2 * HOUR, every=500.0)
        decided = world.manifests()
        world.shut()
    for epoch in range(1, len(pauses) + 1):
        assert decided[epoch].contributors >= 6, f"epoch {epoch}"
    assert max(decided) == len(pauses)


def test_error_for_a_future_epoch_states_the_producer_and_how_far_it_is_ahead(
    folder: Path,
) -> None:
    world = World(deployed(calendar=True), folder, values())
    world.now = 0.5 * HOUR
    close(world, 1)
    close(world, 9, "north")
    settle(world)
    rejected = letters(world)
    assert {letter.reason.value for letter in rejected} == {"epoch"}
    assert len(rejected) == 2
    assert rejected[0].detail == (
        "producer north is ahead of time: epoch 9 starts at 2023-11-15 06:13:20 UTC, 7.5 h ahead "
        "of the broker's clock; expected at most 60 s"
    )
    assert heartbeat(world)["ahead"] == [{"producer": "north", "epochs": 8}]
    assert sorted(world.manifests()) == [1]

    for epoch in range(2, 9):
        world.now = (epoch - 0.5) * HOUR
        close(world, epoch, "south", "east", "west")
        settle(world, HOUR)
    assert all(world.manifests()[epoch].contributors == 6 for epoch in range(2, 9))
    world.now = 9.5 * HOUR
    settle(world)
    assert heartbeat(world)["ahead"] == []
    world.shut()


def test_epoch_is_accepted_within_the_tolerance(folder: Path) -> None:
    for early, rejections in ((60.0, 0), (60.001, 2)):
        world = World(deployed(calendar=True), folder / str(early), values())
        world.now = HOUR - early
        close(world, 2, "north")
        settle(world)
        assert len(letters(world)) == rejections, early
        world.shut()


def test_window_closes_a_grace_period_after_its_end_by_the_broker_clock(folder: Path) -> None:
    world = World(deployed(calendar=True), folder, values())
    world.now = 0.1 * HOUR
    close(world, 1, "north", "south", "east")
    settle(world, 0.9 * HOUR + 59)
    assert not world.manifests()
    settle(world, 60)
    assert world.manifests()[1].contributors == 6
    world.shut()


def test_epoch_without_records_is_not_finalized_before_its_end(folder: Path) -> None:
    world = World(deployed(calendar=True), folder, values())
    world.now = HOUR - 30
    close(world, 2)
    settle(world)
    assert sorted(world.manifests()) == [2]
    settle(world, 30 + 59, every=1.0)
    assert sorted(world.manifests()) == [2]
    settle(world, 3, every=1.0)
    assert world.manifests()[1].window_status is WindowStatus.EMPTY
    world.shut()


def test_all_past_epochs_of_a_calendar_are_published(folder: Path) -> None:
    world = World(deployed(20, calendar=True), folder, {"north": values(20)["north"]})
    world.now = 21 * HOUR
    for epoch in range(1, 21):
        close(world, epoch, "north")
    settle(world, 120)
    settle(world)
    assert sorted(world.published()) == [*range(1, 21)]
    assert all(each.window_status is WindowStatus.RELEASED for each in world.manifests().values())
    world.shut()


def test_calendar_is_ignored_while_the_broker_clock_is_unknown(folder: Path) -> None:
    """If records have their writers' timestamps, the majority decides."""
    world = World(deployed(calendar=True), folder, values())
    world.now = 100 * HOUR
    stage = build_stage(
        world.job,
        "shuffle",
        Environment(
            identifiers=world.identifier,
            wall_clock=lambda: 0,
            broker_time=lambda: None,
            generator=np.random.default_rng(1),
        ),
    )
    driver = MemoryDriver(world.log)
    for partition in range(2):
        driver.run(stage.assign(partition, None, 0.0))
    close(world, 2, "north", "south")
    for partition in range(2):
        for record in world.log.read(Role.REPORTS, partition, 0, 99).records:
            driver.run(stage.record(partition, record.offset, record.value, 0.0, None))
    for now in (0.0, 100.0, 200.0):
        driver.run(stage.tick(now))
    assert not world.manifests()
    close(world, 2, "east")
    for record in world.log.read(Role.REPORTS, 0, 4, 99).records:
        driver.run(stage.record(0, record.offset, record.value, 200.0, None))
    for now in (200.0, 261.0, 400.0):
        driver.run(stage.tick(now))
    assert world.manifests()[2].contributors == 6
    world.shut()


def test_producer_rejects_a_future_epoch_before_randomizing_it(folder: Path) -> None:
    now = BEGUN
    log = MemoryLog(clock=lambda: now)
    with Producer(
        deployed(calendar=True),
        folder,
        name="north",
        transport=MemoryDriver(log),
        clock=lambda: now,
    ) as producer:
        producer.enroll(["ann"])
        with pytest.raises(
            ProducerError, match=r"epoch 2 starts at 2023-11-14 23:13:20 UTC, 60 min ahead"
        ):
            producer.close(2)
        with pytest.raises(ProducerError, match="no reports were drawn"):
            producer.report(2, {"ann": 1})
        assert producer.closed_epoch == 0
        assert not log.end(Role.REPORTS, 0)
        producer.close(1)
        now += 3_600_000 - 60_000
        producer.close(2)
        assert producer.closed_epoch == 2


def manifest(job: DeployedJob, epoch: int, first_epoch: int = 1) -> Manifest:
    return Manifest(
        fingerprint=job.fingerprint,
        deployment=job.deployment,
        epoch=epoch,
        window_status=WindowStatus.EMPTY,
        first_offset=0,
        cut_offset=0,
        first_epoch=first_epoch,
        producers=(),
        populations=(),
        contributors=0,
        population=0,
        timestamp=0,
    )


EPOCHS = st.one_of(
    st.integers(1, 64), st.integers(1, 5000), st.integers(1, 1 << 62), st.just(1 << 40)
)


def actions_of(driver: MemoryDriver, steps: Steps[object], most: int) -> int:
    reply: object = None
    for count in range(most):
        try:
            action = steps.send(reply)
        except StopIteration:
            return count
        reply = driver.carry_out(action)
    raise AssertionError(f"more than {most} actions")


def hostile_record(kind: str, job: DeployedJob, epoch: int, first: int) -> tuple[Role, bytes]:
    enrollment = bytes([7] * 16)
    match kind:
        case "manifest":
            record = manifest(job, max(epoch, first), first)
            return Role.MANIFESTS, encode_manifest(record)
        case "registration":
            return Role.PRODUCERS, Registration(DEPLOYMENT, "other", enrollment, epoch).to_bytes()
        case "deregistration":
            return Role.PRODUCERS, Deregistration(DEPLOYMENT, enrollment, epoch).to_bytes()
        case "drain":
            return Role.PRODUCERS, Drain(DEPLOYMENT, epoch, first).to_bytes()
        case "punctuation":
            identity = job.fingerprint, DEPLOYMENT, enrollment
            punctuation = Punctuation(*identity, epoch, 0, 0, 0, bytes(8))
            return Role.REPORTS, encode_punctuation(punctuation)
        case "chunk":
            words = Messages(np.array([[0]], "<u2"))
            chunk = Chunk(job.fingerprint, DEPLOYMENT, epoch, 0, bytes(16), 0, 1, words)
            return Role.SHUFFLED, encode_chunk(chunk)
        case "partial":
            # In turn, a state of the job, an empty state, and an invalid state.
            payloads = (job.aggregator().to_bytes(), b"", b"\xff" * 40)
            (partial,) = split_partial(
                fingerprint=job.fingerprint,
                deployment=job.deployment,
                epoch=epoch,
                manifest_offset=0,
                attempt=bytes(16),
                payload=payloads[first % 3],
            )
            return Role.PARTIALS, encode_partial(partial)
        case _:
            estimate = EstimateRecord(DEPLOYMENT, epoch, WindowStatus.EMPTY, 0, 0, 0, None, {})
            return Role.ESTIMATES, estimate.to_bytes()


KINDS = (
    "manifest",
    "registration",
    "deregistration",
    "drain",
    "punctuation",
    "chunk",
    "partial",
    "estimate",
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8)
# Far enough ahead to be detected, and near enough for the test itself to end.
@example(epoch=20_000, first=1, renew=False)
@example(epoch=20_000, first=1, renew=True)
@example(epoch=20_000, first=20_000, renew=True)
@given(epoch=EPOCHS, first=EPOCHS, renew=st.booleans())
def test_work_caused_by_any_well_formed_record_is_bounded(
    kind: str, renew: bool, epoch: int, first: int
) -> None:
    job = deployed(64, renew=renew)
    assert (job.last_epoch is None) == renew
    role, value = hostile_record(kind, job, epoch, first)
    with memory_folder() as path:
        world = World(job, path, values(8))
        close(world, 1)
        world.log.append(Append(role, 0, value))
        for stage in ("shuffle", "aggregate", "publish"):
            worker = world.worker(stage)
            driver = MemoryDriver(world.log)
            for partition in list(worker.positions):
                actions_of(driver, worker.stage.assign(partition, None, 0.0), 500)
                worker.stage.unfinished(partition)
            for now in (0.0, 61.0):
                while actions_of(driver, worker.poll(now), 200):
                    pass
                actions_of(driver, worker.stage.tick(now), 200)
            windows = worker.stage.heartbeat().get("open_windows", 0)
            assert isinstance(windows, int)
            assert windows <= EPOCHS_AHEAD
        world.shut()


def test_job_continues_after_an_invalid_manifest(folder: Path) -> None:
    for number, poison in enumerate((1 << 40, 4097)):
        world = World(deployed(), folder / str(number), values())
        close(world, 1)
        settle(world)
        world.log.append(Append(Role.MANIFESTS, 0, encode_manifest(manifest(world.job, poison))))
        close(world, 2)
        settle(world, 120)
        assert sorted(world.published()) == [1, 2]
        world.shut()


def test_out_of_range_producer_records_are_skipped() -> None:
    registry = ProducerRegistry(deployed(64))
    for record in (
        Registration(DEPLOYMENT, "beyond", bytes([1] * 16), 65),
        Registration(DEPLOYMENT, "last", bytes([2] * 16), 64),
        Drain(DEPLOYMENT, 2, 1),
    ):
        registry.apply(LogRecord(0, record.to_bytes()))
    assert [producer.name for producer in registry] == ["last"]
    assert registry.drains == {}


def test_invalid_partial_is_skipped(folder: Path) -> None:
    world = World(deployed(64), folder, values(64))
    job = world.job
    for part in split_partial(
        fingerprint=job.fingerprint,
        deployment=job.deployment,
        epoch=1,
        manifest_offset=0,
        attempt=bytes(16),
        payload=b"\xff" * 40,
    ):
        world.log.append(Append(Role.PARTIALS, 0, encode_partial(part)))
    close(world, 1)
    settle(world)
    settle(world)
    assert world.published()[1].contributors == 8
    complete: dict[int, bytes] = {}
    log = PartialLog(job, complete.__setitem__)
    for record in world.log.read(Role.PARTIALS, 0, 0, 99).records:
        log.apply(record)
    assert list(complete) == [1]
    assert not list(world.log.values(Role.DEAD_LETTERS))
    world.shut()


def test_chunks_that_are_out_of_range_or_from_other_jobs_become_dead_letters(
    folder: Path,
) -> None:
    world = World(deployed(64), folder, values(64))
    own, words = (world.job.fingerprint, DEPLOYMENT), Messages(np.array([[0]], "<u2"))
    for identity, epoch, partition in (
        ((bytes(16), DEPLOYMENT), 1, 1),
        ((world.job.fingerprint, bytes(16)), 1, 1),
        (own, 65, 0),
        (own, 1 << 40, 0),
        (own, 1, 0),
    ):
        chunk = Chunk(*identity, epoch, 0, bytes(16), 0, 1, words)
        world.log.append(Append(Role.SHUFFLED, partition, encode_chunk(chunk)))
    settle(world)
    assert sorted(letter.reason for letter in letters(world)) == [
        *(Reason.DEPLOYMENT, Reason.EPOCH, Reason.EPOCH, Reason.EPOCH, Reason.FINGERPRINT),
    ]
    assert not world.log.values(Role.PARTIALS)
    world.shut()


@given(st.integers(1, 1 << 62), st.integers(0, 253_402_300_799_999))
def test_calendar_handles_every_epoch_number_without_an_error(epoch: int, now: int) -> None:
    times = times_of(deployed(calendar=True))
    assert times is not None
    times.has_ended(epoch, now)
    times.epoch_of(now)
    assert (times.rejection(epoch, now) is None) == (times.early_by(epoch, now) is None)
