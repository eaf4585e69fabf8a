"""Test windows of many producers: delta-encoded manifests, decoded in bulk."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.ledger.releases import releases_in
from dpstream.pipeline.stages.decision_log import (
    DecisionLog,
    manifest_reader,
)
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import (
    WindowStatus,
    decode_manifest,
    is_short,
)
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from dpstream.topics.records import Registration

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


def test_successor_of_a_worker_continues_with_short_manifests() -> None:
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
