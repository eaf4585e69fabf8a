"""``verify-stage --raw`` makes large windows again, and compares them, in little memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from pipeline.actions import Append
from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.noise_keys import NoiseKey
from pipeline.operations.stage_verification import evidence as reading
from pipeline.operations.stage_verification.noise import tally
from pipeline.operations.stage_verification.raw import remade_windows
from pipeline.operations.stage_verification.verify_stage import verify_stages
from pipeline.simulation.memory import MemoryDriver
from pipeline.simulation.simulate import SimulatedCluster
from pipeline.stages import multisets, sorted_runs
from randomizers.randomness import seeded_generator
from tests.support.signed_stages import (
    KeepingLog,
    evidence_of,
    finding,
    signed,
    verified,
    violated,
)
from topics.batches import decode_batch
from topics.chunks import decode_chunk, encode_chunk
from topics.frames import Kind, kind_of
from topics.names import Role
from topics.words import Words

EPOCHS = 2
KEY = NoiseKey(bytes(range(32)))


def ran(protocol: str, users: int, **parameters: object) -> tuple[DeployedJob, KeepingLog]:
    """A job whose raw reports are kept, of so many devices that hold the first item."""
    values = {
        "name": "large",
        "protocol": protocol,
        "parameters": parameters,
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": 10},
        "topics": {"partitions": 1},
    }
    job = deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))
    log = KeepingLog(lambda: 1)
    cluster = SimulatedCluster(job, generators, KEY, log=log, around=signed)
    producer = Producer(
        cluster.job, None, name="one", transport=MemoryDriver(log), generators=generators
    )
    producer.enrol([str(number) for number in range(users)])
    for epoch in range(1, EPOCHS + 1):
        producer.report_all(epoch, np.ones((users, *job.domain.shape), np.int64))
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return cluster.job, log


def generators(purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(7, len(purpose), number)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small windows go the way of large ones."""
    monkeypatch.setattr(multisets, "_MEMORY_LIMIT", 1 << 14)
    monkeypatch.setattr(sorted_runs, "BLOCK_BYTES", 1 << 15)
    monkeypatch.setattr(sorted_runs, "PAGE_BYTES", 1 << 10)
    monkeypatch.setattr(reading, "HELD_BYTES", 1 << 14)


def test_what_is_held_does_not_grow_with_the_window(little_memory: None) -> None:
    """Of words in no table, which the raw topic and the released window have one by one."""
    peaks, sizes = [], []
    for users in (40_000, 160_000):
        job, log = ran("laplace_histogram", users, epsilon=1, domain=[*"abcdefgh"])
        tracemalloc.start()
        found = verify_stages(evidence_of(job, log, raw=True))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert violated(found) == set()
        assert {"order", "cut", "raw contents"} <= verified(found)
        sizes.append(sum(map(len, log.values(Role.SHUFFLED))) / EPOCHS)
    assert sizes[1] > 3.5 * sizes[0]
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < sizes[1]


def test_what_devices_sent_is_known_beside_the_noise(little_memory: None) -> None:
    """How much, and how often each word that is tested; with the key the window is made again."""
    noise = {"epsilon": 0.5, "delta": 1e-6, "rows": 2, "buckets": 8, "dummies": "shuffle"}
    job, log = ran("count_min", 40, domain=["a", "b", "c"], **noise)
    evidence = evidence_of(job, log, raw=True)
    sent: dict[int, list[Words]] = {epoch: [] for epoch in range(1, EPOCHS + 1)}
    for value in log.values(Role.REPORTS):
        if kind_of(value) is Kind.BATCH:
            batch = decode_batch(value)
            sent[batch.epoch].append(batch.words)
    for epoch, window in remade_windows(evidence).items():
        (words,) = sent[epoch]
        assert window.sent.messages == words.messages > 0
        assert window.sent.tested is not None
        rows, counts = tally(words, window.sent.tested)
        assert len(rows) > 1
        assert (counts[0] == counts[1]).all()
        assert window.contents is None
    found = verify_stages(evidence)
    assert violated(found) == set()
    assert {"noise", "cut"} <= verified(found)
    assert "--noise-key" in finding(found, "raw contents").missing
    found = verify_stages(evidence, noise_key=KEY)
    assert violated(found) == set()
    assert {"noise", "cut", "raw contents"} <= verified(found)


def test_a_window_in_pieces_that_come_in_any_order_is_read_in_theirs(little_memory: None) -> None:
    """Two attempts whose pieces lie among each other, one of them backwards, and one in part."""
    job, log = ran("laplace_histogram", 12_000, epsilon=1, domain=[*"abcdefgh"])
    (first,) = (each for each in evidence_of(job, log).attempts if each.epoch == 1)
    pieces = [decode_chunk(value) for value in log.values(Role.SHUFFLED)]
    pieces = [piece for piece in pieces if piece.epoch == 1]
    assert len(pieces) > 1
    backwards = [replace(piece, attempt=bytes([1] * 16)) for piece in reversed(pieces)]
    again = [replace(piece, attempt=bytes([2] * 16)) for piece in pieces]
    partly = [replace(piece, attempt=bytes([3] * 16)) for piece in pieces[1:]]
    for each in zip(partly, backwards, again, strict=False):
        for piece in (*each, each[0]):
            log.append(Append(Role.SHUFFLED, 0, encode_chunk(piece)))
    for piece in (backwards[-1], again[-1]):
        log.append(Append(Role.SHUFFLED, 0, encode_chunk(piece)))
    found = {each.attempt[0]: each for each in evidence_of(job, log).attempts if each.epoch == 1}
    for number in (1, 2):
        assert found[number] == replace(first, attempt=bytes([number] * 16))
    assert not found[3].complete
