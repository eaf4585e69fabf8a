"""Test windows of many producers: delta-encoded manifests, decoded in bulk."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.ledger.releases import releases_in
from dpstream.pipeline.stages.decision_log import (
    Decision,
    DecisionLog,
    Decisions,
    manifest_reader,
)
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import (
    Manifest,
    WindowStatus,
    decode_manifest,
    encode_manifest,
    is_short,
)
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from tests.benchmarks.one_core import shuffle_stage
from tests.support.new_jobs import new_job

EPOCHS = 4


def deployed(producers: int, epochs: int = EPOCHS, **shuffle: Any) -> DeployedJob:
    values = {
        "name": "many",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "max_changes": 1},
        "epochs": {"count": epochs},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": producers, **shuffle},
        "topics": {"partitions": 1},
    }
    return deploy_job(make_job(values), deployment=bytes(range(16)), deployed_at=0)


def worker_of(job: DeployedJob, log: MemoryLog, attempts: count[int]) -> MemoryWorker:
    stage = build_stage(
        job,
        "shuffle",
        Environment(
            identifiers=lambda: next(attempts).to_bytes(16, "big"),
            wall_clock=lambda: 5,
            broker_time=lambda: None,
            generator=np.random.default_rng(0),
        ),
    )
    return MemoryWorker(stage, log)


class KeepingLog(MemoryLog):
    """Log without deletion, so that released windows can be released again."""

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        pass


def enrollment(number: int) -> bytes:
    return number.to_bytes(16, "big")


def register(job: DeployedJob, log: MemoryLog, producers: int) -> None:
    for number in range(producers):
        record = Registration(job.deployment, f"p{number}", enrollment(number), 1)
        log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))


def send(job: DeployedJob, log: MemoryLog, epoch: int, number: int) -> None:
    """Send one report, whose message identifies its producer."""
    identity = job.fingerprint, job.deployment
    words = Messages(np.full((1, job.message_format.width), number % 2, job.message_format.dtype))
    batch = Batch(*identity, batch_id(bytes(8), 0), enrollment(number), epoch, words)
    log.append(Append(Role.REPORTS, 0, encode_batch(batch)))
    punctuation = Punctuation(
        *identity, enrollment(number), epoch, 1, 1, 500 + 7 * number, bytes(8)
    )
    log.append(Append(Role.REPORTS, 0, encode_punctuation(punctuation)))


def released(log: MemoryLog) -> dict[bytes, tuple[int, Any, Any]]:
    chunks = [decode_chunk(value) for value in log.values(Role.SHUFFLED)]
    return {
        each.attempt: (
            each.epoch,
            each.words.values.tolist(),
            None if each.words.counts is None else each.words.counts.tolist(),
        )
        for each in chunks
    }


def test_successor_continues_with_short_manifests() -> None:
    job, log, attempts = deployed(MANY_PRODUCERS), KeepingLog(), count(1)
    register(job, log, MANY_PRODUCERS)
    first = worker_of(job, log, attempts)
    first.run(first.assign(0))
    for epoch in (1, 2):
        for number in range(MANY_PRODUCERS):
            send(job, log, epoch, number)
        first.run(first.drain())
    records = log.values(Role.MANIFESTS)
    assert [is_short(record) for record in records] == [False, True]
    once = released(log)
    assert sorted(epoch for epoch, *_ in once.values()) == [1, 2]
    # The successor finds no commit, and rewrites both windows with the same messages.
    log.committed.clear()
    second = worker_of(job, log, attempts)
    second.run(second.assign(0))
    twice = [each for attempt, each in released(log).items() if attempt not in once]
    assert sorted(twice) == sorted(once.values())
    for number in range(MANY_PRODUCERS):
        send(job, log, 3, number)
    second.run(second.drain())
    assert [is_short(record) for record in log.values(Role.MANIFESTS)] == [False, True, True]


def test_window_closes_with_the_record_that_completes_it() -> None:
    job, log = deployed(2), MemoryLog()
    register(job, log, 2)
    worker = worker_of(job, log, count(1))
    worker.run(worker.assign(0))
    for number in (0, 1, 1):
        send(job, log, 1, number)
    decided = []
    while worker.run(worker.poll()):
        decided.append(len(log.values(Role.MANIFESTS)))
    assert decided == [0, 0, 0, 1, 1, 1]
    (manifest,) = map(decode_manifest, log.values(Role.MANIFESTS))
    assert (manifest.first_offset, manifest.cut_offset) == (0, 4)


def test_all_readers_accept_short_manifests() -> None:
    job, log = deployed(MANY_PRODUCERS), MemoryLog()
    register(job, log, MANY_PRODUCERS)
    worker = worker_of(job, log, count(1))
    worker.run(worker.assign(0))
    for epoch in range(1, EPOCHS + 1):
        for number in range(MANY_PRODUCERS):
            send(job, log, epoch, number)
        worker.run(worker.drain())

    def read(role: Role, partition: int) -> list[LogRecord]:
        return list(log.read(role, partition, 0, log.end(role, partition)).records)

    reader = manifest_reader(job)
    manifests = [reader.decode(each.offset, each.value) for each in read(Role.MANIFESTS, 0)]
    assert [each.epoch for each in manifests] == [1, 2, 3, 4]
    populations = tuple(500 + 7 * number for number in range(MANY_PRODUCERS))
    for each in manifests:
        assert each.producers == (True,) * MANY_PRODUCERS
        assert each.populations == populations
    name = job.deployment.hex()
    releases = releases_in(job.name, read(Role.MANIFESTS, 0), [], {name: EPOCHS})[name]
    assert (releases.windows_by_status, releases.contributors) == (
        {WindowStatus.RELEASED: EPOCHS},
        (MANY_PRODUCERS,) * 2,
    )
    (present,) = releases.present.values()
    assert (present.windows, present.producers) == (EPOCHS, MANY_PRODUCERS)
    decisions = DecisionLog(job)
    for record in read(Role.MANIFESTS, 0):
        decisions.apply(record)
    assert decisions.decided.highest == EPOCHS
    assert [decisions.population(index) for index in range(100)] == list(populations)


DECIDED_EPOCHS = 20_000
PRODUCERS = 5


def job_of(partitions: int = 4, minimum: int = 1) -> DeployedJob:
    job = new_job(
        "rows",
        "future_rand",
        {"epsilon": 4, "max_changes": 4},
        epochs={"count": DECIDED_EPOCHS},
        shuffle={"grace": "1h", "minimum": minimum, "producers": PRODUCERS},
        topics={"partitions": partitions},
    )
    return deploy_job(job, deployed_at=0, deployment=bytes(range(16)))


JOB = job_of()


def manifest(rng: np.random.Generator, epoch: int, **changes: Any) -> bytes:
    inside = [True] * PRODUCERS
    if rng.random() < 0.02:
        inside[rng.integers(PRODUCERS)] = False
    populations = [int(number) for number in rng.integers(50, 60, sum(inside))]
    window_status = WindowStatus.EMPTY if rng.random() < 0.05 else WindowStatus.RELEASED
    values: dict[str, Any] = {
        "fingerprint": JOB.fingerprint,
        "deployment": JOB.deployment,
        "epoch": epoch,
        "window_status": window_status,
        "first_offset": 10 * epoch,
        "cut_offset": 10 * epoch + 5,
        "first_epoch": 3,
        "producers": tuple(inside),
        "populations": tuple(populations),
        "contributors": 0 if window_status is WindowStatus.EMPTY else 9,
        "population": 400,
        "timestamp": epoch,
    }
    return encode_manifest(Manifest(**(values | changes)))


def history(seed: int, epochs: int = 1_300) -> list[LogRecord]:
    rng = np.random.default_rng(seed)
    order = np.argsort(np.arange(3, epochs) + rng.uniform(0, rng.choice([1, 6, 40]), epochs - 3))
    values = []
    for epoch in (order + 3).tolist():
        values.append(manifest(rng, epoch))
        match int(rng.integers(150)):
            case 0:
                values.append(manifest(rng, int(rng.integers(3, epoch + 1))))
            case 1:
                values.append(manifest(rng, epoch + EPOCHS_AHEAD + int(rng.integers(50, 99))))
            case 2:
                values.append(b"\x01" + values[-1][1:])
            case 3:
                values.append(manifest(rng, epoch + 50, deployment=bytes(16)))
            case 4:
                values.append(manifest(rng, 2, first_epoch=2))
            case 5:
                values.append(manifest(rng, DECIDED_EPOCHS + 1))
            case 6:
                drawings = (bytes(8),) * PRODUCERS
                every = {"producers": (True,) * PRODUCERS, "populations": (50,) * PRODUCERS}
                values.append(manifest(rng, epoch, instance=2, drawings=drawings, **every))
    return [LogRecord(offset, value) for offset, value in enumerate(values)]


class Known:
    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []
        self.rows = 0
        self.log = DecisionLog(JOB, self._one, self._many)

    def _one(self, decision: Decision) -> None:
        self.shown.append((decision.offset, decision.manifest.epoch))

    def _many(self, decisions: Decisions) -> None:
        self.rows += len(decisions.offsets)
        for row, offset in enumerate(decisions.offsets):
            decision = decisions.decision(row)
            assert (decision.offset, decision.manifest.epoch) == (
                offset,
                decisions.rows.epochs[row],
            )
            self._one(decision)

    def all(self) -> tuple[object, ...]:
        log = self.log
        outcomes = {}
        for epoch in range(1, 1_500):
            outcome = log.recent(epoch)
            if outcome is not None:
                outcomes[epoch] = (
                    outcome.window_status, outcome.first_offset, outcome.cut_offset, outcome.bits,
                )  # fmt: skip
        return (
            self.shown,
            log.first_epoch,
            list(log.decided.missing(1, 1_400)),
            log.decided.highest,
            outcomes,
            [log.population(index) for index in range(PRODUCERS)],
            [log.last_in(index) for index in range(PRODUCERS)],
        )


def test_new_owner_writes_windows_finalized_long_ago() -> None:
    log, known, behind = MemoryLog(), Known(), 6_500
    for record in history(1, 700):
        log.append(Append(Role.MANIFESTS, 0, record.value))
        known.log.apply(record)
    pending = [
        epoch
        for epoch in range(1, 700)
        if JOB.topics.partition_of(epoch) == 1
        and (outcome := known.log.recent(epoch)) is not None
        and outcome.window_status is WindowStatus.RELEASED
        and outcome.first_offset >= behind
    ]
    assert len(pending) > 5
    log.committed.update({(Role.REPORTS, 0): 10 * DECIDED_EPOCHS, (Role.REPORTS, 1): behind})
    worker = MemoryWorker(shuffle_stage(JOB), log)
    for partition in (0, 1):
        worker.run(worker.assign(partition))
    assert [decode_chunk(value).epoch for value in log.values(Role.SHUFFLED, 1)] == pending


WATCHED_EPOCHS, MOST, WANTED = 8, 6, 2


NUMBERS, IN = st.integers(0, MOST - 1), st.integers(1, WATCHED_EPOCHS)
