"""Test that a restarting stage reads few records, and reaches the same state as by reading all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from dpstream.pipeline import actions
from dpstream.pipeline.actions import Action, Append, LogRecord, ReadRange
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.stages import checkpoints
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest, encode_manifest
from dpstream.topics.names import Role
from tests.support.histories import NOW, fill, history_job

EPOCHS, HORIZON = 180, 16


@pytest.fixture(scope="module")
def history() -> tuple[DeployedJob, list[Append]]:
    job, written = history_job(EPOCHS, HORIZON), list[Append]()
    fill(job, EPOCHS, written.append)
    return job, written


class ReadingDriver(MemoryDriver):
    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.records: Counter[Role] = Counter()

    def carry_out(self, action: Action) -> object:
        reply = super().carry_out(action)
        if isinstance(action, ReadRange):
            self.records[action.role] += len(reply.records)  # type: ignore[attr-defined]
        return reply


def log_of(written: list[Append], *, estimates: int = EPOCHS, documents: int = EPOCHS) -> MemoryLog:
    log, left = MemoryLog(lambda: NOW), {Role.ESTIMATES: estimates, Role.RESULTS: documents}
    for each in written:
        if left.setdefault(each.role, EPOCHS) > 0:
            log.append(each)
            left[each.role] -= 1
    return log


def publish(job: DeployedJob, log: MemoryLog) -> ReadingDriver:
    driver = ReadingDriver(log)
    worker = MemoryWorker(PublishStage(job), log, driver)
    worker.run(worker.assign(0))
    worker.run(worker.drain())
    return driver


def outcome(log: MemoryLog) -> dict[str, dict[int, bytes]]:
    first: dict[int, bytes] = {}
    for value in log.values(Role.ESTIMATES):
        with suppress(CodecError):
            first.setdefault(EstimateRecord.from_bytes(value).epoch, value)
    records = log.read(Role.RESULTS, 0, 0, log.end(Role.RESULTS, 0)).records
    last = {number: record.value for number, record in enumerate(records)}
    return {"estimates": first, "documents": dict(enumerate(sorted(set(last.values()))))}


@pytest.mark.parametrize(("estimates", "documents"), [(179, 170), (180, 180), (40, 3), (0, 0)])
def test_restarted_publisher_writes_missing_epochs_and_reads_few_records(
    history: tuple[DeployedJob, list[Append]],
    estimates: int,
    documents: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, written = history
    monkeypatch.setattr(actions, "_READ_FIRST", 16)
    monkeypatch.setattr(checkpoints, "NEAR", 16)
    log = log_of(written, estimates=estimates, documents=documents)
    driver = publish(job, log)
    assert log.values(Role.ESTIMATES) == log_of(written).values(Role.ESTIMATES)
    assert log.values(Role.RESULTS) == log_of(written).values(Role.RESULTS)
    assert driver.records[Role.MANIFESTS] == EPOCHS
    assert log.committed[Role.PARTIALS, 0] == log.end(Role.PARTIALS, 0), "committed offset lags"
    if documents > 160:
        assert driver.records[Role.ESTIMATES] < EPOCHS / 3
        assert driver.records[Role.RESULTS] < EPOCHS / 3


def altered(job: DeployedJob, written: list[Append], kind: str) -> list[Append]:
    estimates = [each for each in written if each.role is Role.ESTIMATES]
    rest = [each for each in written if each.role is not Role.ESTIMATES]
    last = EstimateRecord.from_bytes(estimates[-2].value)
    match kind:
        case "repeated":  # by a publisher that was paused
            estimates[-3:-3] = estimates[-9:-3]
        case "repeated long ago":
            estimates[-3:-3] = estimates[:9]
        case "missing":
            del estimates[-40]
        case "too early":
            estimates[-40:-40] = [replace(estimates[-2], value=last.to_bytes())]
        case "of another deployment":
            other = replace(last, deployment=b"o" * 16, epoch=EPOCHS)
            estimates[-2:-2] = [replace(estimates[-2], value=other.to_bytes())]
        case "truncated":
            estimates[-5] = replace(estimates[-5], value=estimates[-5].value[:-7])
        case "only other deployments near the end":
            other = replace(last, deployment=b"o" * 16)
            estimates[-1:] = [replace(estimates[-2], value=other.to_bytes())] * 200
            return rest + estimates
    return rest + estimates[:-1]


WRITTEN_BY_PUBLISHERS = (
    "repeated",
    "repeated long ago",
    "of another deployment",
    "only other deployments near the end",
)
NOTICED_NEAR_THE_END = ("missing", "too early", "truncated")


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        *((kind, first) for kind in WRITTEN_BY_PUBLISHERS for first in (2, 128)),
        *((kind, 128) for kind in NOTICED_NEAR_THE_END),
    ],
)
def test_publisher_that_reads_only_the_last_records_writes_the_same_results(
    history: tuple[DeployedJob, list[Append]],
    kind: str,
    first: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, written = history
    changed = altered(job, written, kind)
    logs = []
    for most in (10**6, first):
        log = MemoryLog(lambda: NOW)
        for each in changed:
            log.append(each)
        monkeypatch.setattr(actions, "_READ_FIRST", most)
        publish(job, log)
        logs.append((log.values(Role.ESTIMATES), log.values(Role.RESULTS)))
    assert logs[0] == logs[1]


def test_publisher_recovers_when_stopped_after_any_action(
    history: tuple[DeployedJob, list[Append]], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, written = history
    monkeypatch.setattr(actions, "_READ_FIRST", 4)
    undisturbed = outcome(log_of(written))
    for stop in count(1):
        ended = set()
        for keep in (True, False):
            log = log_of(written, estimates=176, documents=174)
            driver = MemoryDriver(log)
            worker = MemoryWorker(PublishStage(job), log, driver)
            ended.add(_stopped(worker, driver, stop))
            driver.crash(keep=keep)
            publish(job, log)
            assert outcome(log) == undisturbed
        if ended == {False}:
            break
    assert stop > 10


def _stopped(worker: MemoryWorker, driver: MemoryDriver, after: int) -> bool:
    steps, reply = worker.assign(0), None
    for _ in range(after):
        try:
            action = steps.send(reply)
        except StopIteration:
            return False
        reply = driver.carry_out(action)
    return True


def test_epochs_before_the_first_requested_epoch_do_not_require_partials(
    history: tuple[DeployedJob, list[Append]],
) -> None:
    job, written = history
    log = MemoryLog(lambda: NOW)
    partials = count(1)
    for each in written:
        if each.role is not Role.PARTIALS or next(partials) >= 120:
            log.append(each)
    epochs = list(EpochLog(job, 120).read(MemoryDriver(log).run))
    assert [each.epoch for each in epochs] == list(range(120, EPOCHS + 1))
    assert all(each.counts is not None for each in epochs)
    assert not list(EpochLog(job, 119).read(MemoryDriver(log).run))


def shuffle_stage(job: DeployedJob, attempts: Iterator[int]) -> Stage:
    return build_stage(
        job,
        "shuffle",
        Environment(
            identifiers=lambda: next(attempts).to_bytes(16, "big"),
            wall_clock=lambda: NOW,
            broker_time=lambda: None,
            generator=np.random.default_rng(0),
        ),
    )


@pytest.mark.parametrize("pending", [None, 177, 180])
def test_partition_assignment_reads_manifests_once_for_all_partitions(
    history: tuple[DeployedJob, list[Append]], pending: int | None
) -> None:
    job, written = history
    log = log_of(written)
    for partition in range(job.topics.partitions):
        log.committed[Role.REPORTS, partition] = EPOCHS
    if pending is not None:
        # Its first offset is the end of the committed epochs of its partition.
        log.committed[Role.REPORTS, job.topics.partition_of(pending)] = pending - 1
    driver = ReadingDriver(log)
    worker = MemoryWorker(shuffle_stage(job, count(1)), log, driver)
    for partition in range(job.topics.partitions):
        worker.run(worker.assign(partition))
    chunks = [
        decode_chunk(value).epoch
        for partition in range(job.topics.partitions)
        for value in log.values(Role.SHUFFLED, partition)
    ]
    assert set(chunks) == (set() if pending is None else {pending})
    again = pending is not None and job.topics.partition_of(pending) > 0
    # A partition with a pending window, other than the first, needs another read.
    assert driver.records[Role.MANIFESTS] // EPOCHS == (2 if again else 1)


@pytest.mark.parametrize("few", [0, 3, 256])
def test_last_participation_is_correct_in_any_order_of_epochs(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.pipeline.stages.decision_log.FEW", few)
    monkeypatch.setattr("dpstream.pipeline.stages.decision_log.FEW", few)
    job = history_job(EPOCHS, HORIZON)
    rng = np.random.default_rng(5)
    manifests = list(_manifests(job, rng))
    log = DecisionLog(job)
    last, devices = np.zeros(4, int), np.zeros(4, int)
    for offset, manifest in enumerate(manifests):
        record = encode_manifest(manifest)
        log.apply(LogRecord(offset, record))
        assert decode_manifest(record) == manifest
        populations = iter(manifest.populations)
        for index, inside in enumerate(manifest.producers):
            devices_now = next(populations) if inside else 0
            if inside and manifest.epoch > last[index]:
                last[index], devices[index] = manifest.epoch, devices_now
        if rng.random() < 0.3:
            assert [log.last_in(index) for index in range(4)] == last.tolist()
            assert [log.population(index) for index in range(4)] == devices.tolist()
            assert log.last_in_of(5).tolist() == [*last.tolist(), 0]
            outcome = log.recent(manifest.epoch)
            assert outcome is not None
            assert outcome.inside(4).tolist() == [*manifest.producers, *[False] * 4][:4]


def _manifests(job: DeployedJob, rng: np.random.Generator) -> Iterator[Manifest]:
    base = decode_manifest(_first_manifest(job))
    producers: tuple[bool, ...] = (True, True)
    populations: tuple[int, ...] = (5, 6)
    for epoch in (1 + rng.permutation(EPOCHS)).tolist():
        if rng.random() < 0.2:
            producers = tuple(map(bool, rng.integers(0, 2, int(rng.integers(0, 5)))))
            populations = tuple(rng.integers(1, 9, sum(producers)).tolist())
        yield replace(
            base,
            epoch=epoch,
            window_status=WindowStatus.RELEASED if populations else WindowStatus.EMPTY,
            producers=producers,
            populations=populations,
            contributors=min(1, sum(populations)),
            population=sum(populations),
        )


def _first_manifest(job: DeployedJob) -> bytes:
    written: list[Append] = []
    fill(job, 1, written.append)
    return next(each.value for each in written if each.role is Role.MANIFESTS)
