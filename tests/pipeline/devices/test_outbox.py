"""Test that reports and dummy messages are drawn once, even if the producer fails while sending.

Two draws of a window's dummy messages could be averaged, and would hide only half as much.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.actions import Append, Result, Steps
from dpstream.pipeline.devices.producer import Producer, ProducerTransport
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_batch
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from tests.support.new_jobs import new_job

DEVICES = 40


class Killed(BaseException):
    """Simulated death of the process."""


class KilledAfter:
    """Simulate Kafka storing some records without acknowledging them to the producer."""

    def __init__(self, log: MemoryLog, records: int) -> None:
        self._log, self._records = log, records

    def run(self, steps: Steps[Result], /) -> Result:
        for action in islice(steps, self._records):
            if isinstance(action, Append):
                self._log.append(action)
        raise Killed


@pytest.mark.parametrize("name", PROTOCOLS)
def test_killed_producer_randomizes_each_epoch_once(name: str, tmp_path: Path) -> None:
    job = deployed(name)
    undisturbed = MemoryLog()
    with open_producer(job, tmp_path / "undisturbed", MemoryDriver(undisturbed), 1) as producer:
        report(producer, job)
        producer.close(1)
    expected = reports(undisturbed)
    records = len(undisturbed.values(Role.REPORTS))
    for sent in range(1, records + 1):
        folder, log = tmp_path / str(sent), MemoryLog()
        with open_producer(job, folder, MemoryDriver(log), 1) as producer:
            report(producer, job)
            producer._transport = KilledAfter(log, sent)
            with pytest.raises(Killed):
                producer.close(1)
        assert len(log.values(Role.REPORTS)) == sent
        # The next run has other randomness, and would draw differently.
        open_producer(job, folder, MemoryDriver(log), 2).shut()
        assert reports(log) == expected


def test_outbox_is_resent_with_the_same_draw_after_a_full_disk(
    tmp_path: Path,
) -> None:
    job, log = deployed("future_rand"), MemoryLog()
    with open_producer(job, tmp_path, MemoryDriver(log), 1) as producer:
        report(producer, job)
        store = producer._store._connection
        store.execute(
            "CREATE TRIGGER full BEFORE DELETE ON outbox "
            "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
        )
        producer.close(1)
        sent = log.values(Role.REPORTS)
        # 2 is FULL: a power loss must not undo the draw, or it would be repeated.
        assert store.execute("PRAGMA synchronous").fetchone() == (2,)
        store.execute("DROP TRIGGER full")
    open_producer(job, tmp_path, MemoryDriver(log), 2).shut()
    assert log.values(Role.REPORTS) == [*sent, *sent]
    open_producer(job, tmp_path, MemoryDriver(log), 3).shut()
    assert log.values(Role.REPORTS) == [*sent, *sent]


def deployed(name: str) -> DeployedJob:
    example = PROTOCOLS[name].examples[0]
    return deploy_job(
        new_job(
            "outbox",
            name,
            json.loads(json.dumps(asdict(example.parameters))),
            count=example.last_epoch,
            minimum=example.minimum,
            partitions=1,
        ),
        deployed_at=0,
    )


def open_producer(
    job: DeployedJob, folder: Path, transport: ProducerTransport, seed: int
) -> Producer:
    return Producer(
        job,
        folder,
        name="gateway",
        transport=transport,
        generators=lambda purpose, number: seeded_generator(seed, len(purpose), number),
    )


def report(producer: Producer, job: DeployedJob) -> None:
    producer.enroll([f"user {number}" for number in range(DEVICES)])
    values = np.arange(DEVICES) % job.domain.size
    if job.domain.shape:
        values = values % 2 if job.domain.columns else values
        values = np.pad(values[:, None], ((0, 0), (0, job.domain.shape[0] - 1)))
    producer.report_all(1, values)


def reports(log: MemoryLog) -> list[tuple[bytes, bytes]]:
    return sorted(set(_by_batch(log)))


def _by_batch(log: MemoryLog) -> Iterator[tuple[bytes, bytes]]:
    seen = set()
    for value in log.values(Role.REPORTS):
        if kind_of(value) is not RecordType.BATCH:
            continue
        batch = decode_batch(value)
        if batch.batch in seen:
            continue
        seen.add(batch.batch)
        counts = batch.words.counts
        yield batch.words.values.tobytes(), b"" if counts is None else counts.tobytes()
