"""Bundles: what several producers sent, in one record, counts as if it had come by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.actions import Append
from pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job, takes_bundles
from pipeline.jobs.job_files import Job, make_job
from pipeline.simulation.memory import MemoryDriver, MemoryLog, MemoryWorker
from pipeline.stages.shuffle_stage import ShuffleStage
from topics.batches import Batch, Punctuation, encode_batch, encode_punctuation
from topics.bundles import Bundle, encode_bundle
from topics.chunks import decode_chunk
from topics.manifests import Manifest, decode_manifest
from topics.names import Role
from topics.records import DeadLetter, Reason, Registration
from topics.words import Words

PRODUCERS, EPOCHS = 3, 4


def job_file(**shuffle: Any) -> Job:
    values = {
        "name": "bundled",
        "protocol": "future_rand",
        "parameters": {"epsilon": 1, "changes": 1},
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": PRODUCERS, **shuffle},
        "topics": {"partitions": 1},
    }
    return make_job(values)


def deployed(*, bundles: bool = True) -> DeployedJob:
    job = deploy_job(job_file(), deployment=bytes(range(16)), deployed_at=0)
    return job.model_copy(update={"bundles": bundles})


JOB = deployed()


def enrolment(number: int) -> bytes:
    return bytes([number + 1]) * 16


def record_of(number: int, epoch: int, *, ends: bool) -> bytes:
    """A batch of one report, whose word says who sends it, or the punctuation after it."""
    identity = JOB.fingerprint, JOB.deployment
    if ends:
        return encode_punctuation(Punctuation(*identity, enrolment(number), epoch, 1, 1, 1))
    words = Words(np.full((1, JOB.word_form.width), number % 2, JOB.word_form.dtype))
    batch = bytes([epoch, number]) * 8
    return encode_batch(Batch(*identity, batch, enrolment(number), epoch, words))


def sent(epoch: int, *numbers: int) -> list[bytes]:
    return [record_of(n, epoch, ends=ends) for n in numbers for ends in (False, True)]


def bundle(*records: bytes) -> bytes:
    return encode_bundle(Bundle(JOB.fingerprint, JOB.deployment, records))


def log_of(reports: list[bytes], producers: int = PRODUCERS) -> MemoryLog:
    log = MemoryLog()
    for number in range(producers):
        record = Registration(JOB.deployment, f"p{number}", enrolment(number), 1)
        log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))
    for value in reports:
        log.append(Append(Role.REPORTS, 0, value))
    return log


def worker_of(log: MemoryLog, attempts: count[int], job: DeployedJob = JOB) -> MemoryWorker:
    stage = ShuffleStage(
        job,
        identifiers=lambda: next(attempts).to_bytes(16, "big"),
        wall_clock=lambda: 5,
        broker_time=lambda: None,
        generator=np.random.default_rng(0),
    )
    return MemoryWorker(stage, log, MemoryDriver(log))


def run(log: MemoryLog, job: DeployedJob = JOB) -> MemoryWorker:
    worker = worker_of(log, count(1), job)
    worker.run(worker.assign(0))
    worker.run(worker.drain())
    return worker


def manifests(log: MemoryLog) -> dict[int, Manifest]:
    found: dict[int, Manifest] = {}
    for value in log.values(Role.MANIFESTS):
        manifest = decode_manifest(value)
        found.setdefault(manifest.epoch, manifest)
    return found


def released(log: MemoryLog) -> dict[int, set[tuple[int, ...]]]:
    """By epoch what its attempts hold: how often each word."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for value in log.values(Role.SHUFFLED):
        chunk = decode_chunk(value)
        words = chunk.words.values[:, 0].tolist()
        counts = chunk.words.counts
        times = [1] * len(words) if counts is None else counts.tolist()
        held: Counter[int] = Counter()
        for word, number in zip(words, times, strict=True):
            held[word] += number
        found.setdefault(chunk.epoch, set()).add((held[0], held[1]))
    return found


def letters(log: MemoryLog) -> list[tuple[int, Reason, bytes]]:
    partition = log.read(Role.DEAD_LETTERS, 0, 0, log.end(Role.DEAD_LETTERS, 0))
    found = [DeadLetter.from_record(each.value, each.headers) for each in partition.records]
    return [(each.offset, each.reason, each.value) for each in found]


STRANGER = record_of(PRODUCERS, 2, ends=False)
STORY = [
    record
    for epoch in range(1, EPOCHS + 1)
    for record in [*sent(epoch, *range(PRODUCERS)), *([STRANGER, b"?"] if epoch == 2 else [])]
]


@settings(max_examples=12, deadline=None)
@given(
    st.permutations(STORY),
    st.lists(st.integers(0, len(STORY)), max_size=6),
    st.lists(st.sampled_from(STORY[:6]), max_size=3),
)
def test_in_bundles_or_alone_the_same_is_released(
    story: list[bytes], cuts: list[int], again: list[bytes]
) -> None:
    story = [*story, *again]
    bounds = sorted({0, *cuts, len(story)})
    bundled = log_of([bundle(*story[a:b]) for a, b in pairwise(bounds)])
    alone = log_of(story)
    for log in (bundled, alone):
        run(log)
    expected = {epoch: {(2, 1)} for epoch in range(1, EPOCHS + 1)}
    assert released(bundled) == released(alone) == expected
    assert [manifest.producers for manifest in manifests(bundled).values()] == [(True,) * 3] * 4
    refused = [{(reason, value) for _, reason, value in letters(each)} for each in (bundled, alone)]
    for each in refused:
        # What comes after its epoch is decided is late, whoever sent it.
        assert each | {(Reason.ENROLMENT, STRANGER)} == {
            (Reason.ENROLMENT, STRANGER),
            (Reason.UNREADABLE, b"?"),
        }


def test_all_that_a_bundle_holds_is_in_or_nothing() -> None:
    """Nobody waits for the last one, which has been silent: it is in with those of its bundle."""
    log = log_of([value for epoch in (1, 2, 3) for value in sent(epoch, 0, 1)])
    worker = worker_of(log, count(1))
    worker.run(worker.assign(0))
    worker.run(worker.drain())
    worker.run(worker.drain(3601.0))
    for epoch in (1, 2, 3):
        log.append(Append(Role.REPORTS, 0, record_of(0, epoch, ends=True)))
    worker.run(worker.drain(3602.0))
    worker.run(worker.drain(8000.0))
    assert list(manifests(log)) == [1, 2, 3]
    log.append(Append(Role.REPORTS, 0, bundle(*sent(4, 0, 1, 2))))
    worker.run(worker.drain(8001.0))
    found = manifests(log)[4]
    assert found.producers == (True, True, True)
    assert found.cut_offset == log.end(Role.REPORTS, 0)
    assert released(log)[4] == {(2, 1)}


def stopped(reports: list[bytes], actions: int, *, keep: bool) -> Iterator[MemoryLog]:
    """Logs of a worker that was stopped after so many actions, and of the one after it."""
    log, attempts = log_of(reports), count(1)
    first = worker_of(log, attempts)

    def all_of_it() -> Any:
        yield from first.assign(0)
        yield from first.drain()

    steps = all_of_it()
    reply: object = None
    for _ in range(actions):
        try:
            reply = first.driver.carry_out(steps.send(reply))
        except StopIteration:
            return
    first.driver.crash(keep=keep)
    second = worker_of(log, attempts)
    second.run(second.assign(0))
    second.run(second.drain())
    yield log


@pytest.mark.parametrize("keep", [False, True])
def test_a_worker_may_be_stopped_anywhere(keep: bool) -> None:
    """A bundle has the end of one window and the beginning of the next one."""
    epochs = (1, 2, 3)
    story = [value for epoch in epochs for value in sent(epoch, 0, 1, 2)]
    reports = [bundle(*story[start : start + 8]) for start in range(0, len(story), 8)]
    ends = -1
    while len(logs := list(stopped(reports, ends + 1, keep=keep))):
        ends += 1
        for log in logs:
            expected = {epoch: {(2, 1)} for epoch in epochs}
            assert released(log) == expected, f"stopped after {ends} actions"
            assert all(each.producers == (True,) * 3 for each in manifests(log).values())
            assert log.committed[Role.REPORTS, 0] == log.end(Role.REPORTS, 0)
    assert ends > 20


def test_jobs_of_earlier_software_have_no_bundles() -> None:
    job = deployed(bundles=False)
    held = bundle(*sent(1, 0, 1, 2))
    log = log_of([held])
    run(log, job)
    assert letters(log) == [(0, Reason.UNREADABLE, held)]
    assert not manifests(log)


@pytest.mark.parametrize("producers", [1, MANY_PRODUCERS - 1, MANY_PRODUCERS])
def test_jobs_that_wait_for_many_producers_take_bundles(producers: int) -> None:
    file = job_file(producers=producers)
    job = deploy_job(file, deployed_at=0)
    assert takes_bundles(file) == job.bundles == (producers == MANY_PRODUCERS)
    assert (b"bundles" in job.to_bytes()) == job.bundles
    assert DeployedJob.from_bytes(job.to_bytes()) == job


def test_jobs_in_lanes_take_bundles_as_others_do() -> None:
    file = job_file(producers=MANY_PRODUCERS)
    lanes = make_job({**file.to_json(), "topics": {"partitions": 2, "lanes": 2}})
    assert takes_bundles(lanes)
    assert deploy_job(lanes, deployed_at=0).bundles
