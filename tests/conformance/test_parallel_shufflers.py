"""Assignment of messages to parallel shufflers."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.devices.epoch_records import DrawnEpoch
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_batch
from dpstream.topics.frames import RecordType, kind_of
from tests.support.new_jobs import new_job

REPORTS = 200


@pytest.mark.parametrize("enrollment", [bytes(16), bytes([1] * 16)], ids=["north", "south"])
@pytest.mark.parametrize("word", [0, 1])
def test_messages_are_divided_at_random_among_shufflers(enrollment: bytes, word: int) -> None:
    """The draw is independent of a message's content, sender and position."""
    job = deploy_job(
        new_job("parallel", "split_budget", {"epsilon": 1}, count=4, minimum=4, instances=2),
        deployed_at=0,
    )
    sizes, rng = set[int](), seeded_generator(7)
    reports = np.full((REPORTS, 1), word, job.message_format.dtype)
    for number in range(20):
        drawing = number.to_bytes(8, "little")
        drawn = DrawnEpoch(job, 1, enrollment, drawing, REPORTS, REPORTS, None)
        parts = [
            sum(
                decode_batch(record).words.messages
                for record in records
                if kind_of(record) is RecordType.BATCH
            )
            for _, records in drawn.records(reports, rng)
        ]
        assert sum(parts) == REPORTS
        assert min(parts) > REPORTS // 4
        sizes.add(parts[0])
    assert len(sizes) > 5
