"""Test a producer whose users have sets of items: accepted values, and records sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from dpstream.pipeline.devices.producer import Producer, ProducerError, Value
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.topics.batches import decode_batch
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role
from tests.support.small_run import generators

JOB = (
    "name: baskets\nprotocol: count_min\n"
    "parameters: {epsilon: 4, delta: 1.0e-3, items: 2, rows: 1, domain: [tea, milk, rye, oil]}\n"
    "epochs: {count: 3}\nshuffle: {minimum: 2}\n"
)


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def producer(log: MemoryLog) -> Iterator[Producer]:
    job = deploy_job(parse_job(JOB), deployed_at=0)
    driver = MemoryDriver(log)
    with Producer(job, None, name="till", transport=driver, generators=generators) as made:
        made.enroll(["ann", "bob"])
        yield made


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (["tea", "milk", "rye"], "user 'bob': got 3 items; job baskets allows 2"),
        (["te"], "user 'bob': value 'te' is not in the domain"),
        ([1.5], "user 'bob': got 1.5; expected text or an integer"),
    ],
)
def test_invalid_set_is_rejected_without_side_effects(
    producer: Producer, said: list[Value], complaint: str
) -> None:
    with pytest.raises(ProducerError, match=complaint):
        producer.report(1, {"ann": ["tea"], "bob": said})
    assert not producer._values.any()


def test_item_sets_are_sent_as_sorted_messages(producer: Producer, log: MemoryLog) -> None:
    cells = 4
    for epoch in (1, 2, 3):
        producer.report(epoch, {"ann": ["oil", "tea"], "bob": "rye"})
        producer.close(epoch)
    batches = []
    for partition in range(len(producer.job.start_offsets[Role.REPORTS])):
        end = log.end(Role.REPORTS, partition)
        for record in log.read(Role.REPORTS, partition, 0, end).records:
            with suppress(CodecError):
                batches.append(decode_batch(record.value))
    assert len(batches) == 3
    for batch in batches:
        words = batch.words.values
        assert words.dtype == np.dtype("<u4")
        assert words.shape[1] == 1
        assert words.max() < cells
        assert (np.diff(words[:, 0].astype(int)) >= 0).all()
        if batch.words.counts is not None:
            assert len(words) <= cells
