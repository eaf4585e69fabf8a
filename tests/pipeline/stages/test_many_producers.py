"""Windows of many producers, whose manifests say what differs from an earlier one."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from pipeline.actions import Append, LogRecord
from pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.operations.releases import releases_in
from pipeline.operations.stage_verification.evidence import read_evidence
from pipeline.simulation.memory import MemoryLog, MemoryWorker
from pipeline.stages.decision_log import DecisionLog
from pipeline.stages.shuffle_stage import ShuffleStage
from topics.batches import Batch, Punctuation, encode_batch, encode_punctuation
from topics.chunks import decode_chunk
from topics.manifests import Fate, is_short
from topics.names import Role
from topics.records import Registration
from topics.words import Words

EPOCHS = 4


def deployed(producers: int, **shuffle: Any) -> DeployedJob:
    values = {
        "name": "many",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": EPOCHS},
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
    batch = Batch(*identity, enrolment(1000 * epoch + number), enrolment(number), epoch, words)
    log.append(Append(Role.REPORTS, 0, encode_batch(batch)))
    said = Punctuation(*identity, enrolment(number), epoch, 1, 1, 500 + 7 * number)
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

    evidence = read_evidence(job, read)
    assert [each.manifest.epoch for each in evidence.manifests] == [1, 2, 3, 4]
    populations = tuple(500 + 7 * number for number in range(MANY_PRODUCERS))
    for each in evidence.manifests:
        assert each.manifest.producers == (True,) * MANY_PRODUCERS
        assert each.manifest.populations == populations
    assert sorted(evidence.decisions) == [1, 2, 3, 4]
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
    # Earlier software reads the jobs that have none.
    assert (b"short_manifests" in job.to_bytes()) == job.short_manifests
    assert DeployedJob.from_bytes(job.to_bytes()) == job


def test_a_job_of_an_earlier_version_goes_on_with_whole_manifests() -> None:
    job = deployed(MANY_PRODUCERS).model_copy(update={"short_manifests": False})
    log = MemoryLog()
    register(job, log, MANY_PRODUCERS)
    worker = worker_of(job, log, count(1))
    worker.run(worker.assign(0))
    for epoch in (1, 2):
        for number in range(MANY_PRODUCERS):
            send(job, log, epoch, number)
        worker.run(worker.drain())
    assert [is_short(record) for record in log.values(Role.MANIFESTS)] == [False, False]
