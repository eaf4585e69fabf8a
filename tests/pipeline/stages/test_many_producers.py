"""Windows of many producers, whose manifests say what differs from an earlier one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.operations.releases import releases_in
from dpstream.pipeline.simulation.memory import MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.stages.decision_log import DecisionLog, manifest_reader
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.shuffle_stage import ShuffleStage
from dpstream.topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import Fate, Manifest, decode_manifest, is_short
from dpstream.topics.names import Role
from dpstream.topics.records import Registration
from dpstream.topics.short_manifests import BASES
from dpstream.topics.words import Words

EPOCHS = 4
# What may be remembered of decisions, of ten thousand producers.
REMEMBERED, MOST_PRODUCERS = 64 << 20, 10_000


def deployed(producers: int, epochs: int = EPOCHS, **shuffle: Any) -> DeployedJob:
    values = {
        "name": "many",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": epochs},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": producers, **shuffle},
        "topics": {"partitions": 1},
    }
    return deploy_job(make_job(values), deployment=bytes(range(16)), deployed_at=0)


def worker_of(job: DeployedJob, log: MemoryLog, attempts: count[int]) -> MemoryWorker:
    stage = ShuffleStage(
        job,
        identifiers=lambda: next(attempts).to_bytes(16, "big"),
        wall_clock=lambda: 5,
        broker_time=lambda: None,
        generator=np.random.default_rng(0),
    )
    return MemoryWorker(stage, log)


class KeepingLog(MemoryLog):
    """Deletes nothing, so that what was released may be released again."""

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        pass


def enrolment(number: int) -> bytes:
    return number.to_bytes(16, "big")


def register(job: DeployedJob, log: MemoryLog, producers: int) -> None:
    for number in range(producers):
        record = Registration(job.deployment, f"p{number}", enrolment(number), 1)
        log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))


def send(job: DeployedJob, log: MemoryLog, epoch: int, number: int) -> None:
    """One report, which says whose it is."""
    identity = job.fingerprint, job.deployment
    words = Words(np.full((1, job.word_form.width), number % 2, job.word_form.dtype))
    batch = Batch(*identity, batch_id(bytes(8), 0), enrolment(number), epoch, words)
    log.append(Append(Role.REPORTS, 0, encode_batch(batch)))
    said = Punctuation(*identity, enrolment(number), epoch, 1, 1, 500 + 7 * number, bytes(8))
    log.append(Append(Role.REPORTS, 0, encode_punctuation(said)))


def released(log: MemoryLog) -> dict[bytes, tuple[int, Any, Any]]:
    """By attempt, its epoch and its words."""
    chunks = [decode_chunk(value) for value in log.values(Role.SHUFFLED)]
    return {
        each.attempt: (
            each.epoch,
            each.words.values.tolist(),
            None if each.words.counts is None else each.words.counts.tolist(),
        )
        for each in chunks
    }


def test_a_worker_that_takes_over_goes_on_under_short_manifests() -> None:
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
    # Nothing was committed, as far as the next one knows: it writes both again, all the same.
    log.committed.clear()
    second = worker_of(job, log, attempts)
    second.run(second.assign(0))
    twice = [each for attempt, each in released(log).items() if attempt not in once]
    assert sorted(twice) == sorted(once.values())
    for number in range(MANY_PRODUCERS):
        send(job, log, 3, number)
    second.run(second.drain())
    assert [is_short(record) for record in log.values(Role.MANIFESTS)] == [False, True, True]


def test_a_window_is_decided_with_the_record_that_completes_it() -> None:
    """Before the stage looks at all windows the next time; what follows is not in it."""
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


def test_all_who_read_manifests_read_short_ones() -> None:
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
    found = releases_in(job.name, read(Role.MANIFESTS, 0), [], {name: EPOCHS})[name]
    assert (found.fates, found.contributors) == ({Fate.RELEASED: EPOCHS}, (MANY_PRODUCERS,) * 2)
    (present,) = found.present.values()
    assert (present.windows, present.producers) == (EPOCHS, MANY_PRODUCERS)
    decisions = DecisionLog(job)
    for record in read(Role.MANIFESTS, 0):
        decisions.apply(record)
    assert decisions.decided.highest == EPOCHS
    assert [decisions.population(index) for index in range(100)] == list(populations)


@pytest.mark.parametrize("producers", [1, MANY_PRODUCERS - 1, MANY_PRODUCERS])
def test_jobs_that_wait_for_many_producers_have_short_manifests(producers: int) -> None:
    job = deployed(producers)
    assert job.short_manifests == (producers == MANY_PRODUCERS)


@dataclass
class Held:
    """Bytes that were allocated meanwhile: at most at a time, and what is left."""

    most: int = 0
    left: int = 0


@contextmanager
def counted() -> Iterator[Held]:
    held = Held()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield held
        left, most = tracemalloc.get_traced_memory()
        held.left, held.most = left - before, most - before
    finally:
        tracemalloc.stop()


def decided(job: DeployedJob, epochs: range, producers: int) -> MemoryLog:
    """Of each epoch two others are missing; the offsets are those of no reports."""
    log, writer = MemoryLog(), DecisionLog(job)
    register(job, log, producers)
    populations = np.arange(500, 500 + producers)
    for epoch in epochs:
        inside = np.ones(producers, np.bool_)
        inside[[epoch % producers, 7 * epoch % producers]] = False
        counts = populations[inside].tolist()
        manifest = Manifest(
            job.fingerprint, job.deployment, epoch, Fate.RELEASED, 0, 0, 1, tuple(inside.tolist()),
            tuple(counts), sum(counts), int(populations.sum()), 0,
        )  # fmt: skip
        record = writer.encode(manifest)
        log.append(Append(Role.MANIFESTS, 0, record))
        writer.apply(LogRecord(log.end(Role.MANIFESTS, 0) - 1, record))
    return log


def test_what_is_remembered_of_decisions_is_a_bit_for_each_producer() -> None:
    producers, epochs = 800, 160
    job = deployed(producers, EPOCHS_AHEAD)
    log = decided(job, range(1, epochs + 1), producers)
    records = log.read(Role.MANIFESTS, 0, 0, epochs).records
    decisions = DecisionLog(job)
    decisions.apply(records[0])
    with counted() as held:
        for record in records[1:]:
            decisions.apply(record)
    # Whole manifests are remembered of a few epochs only, whatever the epochs are.
    each = held.left / (epochs - 1)
    assert producers / 8 <= each <= producers / 8 + 400
    assert EPOCHS_AHEAD * (MOST_PRODUCERS / 8 + 400) + BASES * 4 * MOST_PRODUCERS < REMEMBERED


def test_of_windows_that_are_owed_or_wait_for_an_earlier_one_the_manifests_are_not_held() -> None:
    producers, epochs = 500, 120
    job = deployed(producers, EPOCHS_AHEAD)
    log = decided(job, range(2, epochs + 2), producers)
    written = sum(map(len, log.values(Role.MANIFESTS)))
    manifest = 25 * producers
    # One is in the log whole, and the others in a few bytes.
    assert written < manifest + 200 * epochs
    publisher = EpochLog(job)
    with counted() as held:
        assert not list(publisher.read(MemoryDriver(log).run))
    assert publisher.next_epoch == 1
    assert held.left < 1_000 * epochs
    # Whoever takes over writes all of them, one after the other.
    worker = worker_of(job, log, count(1))
    with counted() as held:
        worker.run(worker.assign(0))
    assert len(released(log)) == epochs
    assert held.most < 4_000 * epochs < epochs * manifest / 3
