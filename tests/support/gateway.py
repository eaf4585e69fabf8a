"""In-memory producer with repeatable randomness."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpstream.pipeline.actions import Result, Steps
from dpstream.pipeline.devices.producer import Generators, Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import Punctuation, decode_punctuation
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role


def seeded(seed: int) -> Generators:
    def generators(purpose: str, number: int) -> np.random.Generator:
        return seeded_generator(seed, len(purpose), number)

    return generators


def open_producer(job: DeployedJob, folder: Path | None, log: MemoryLog, seed: int = 1) -> Producer:
    return Producer(
        job, folder, name="gateway", transport=MemoryDriver(log), generators=seeded(seed)
    )


def sorted_punctuations(log: MemoryLog) -> list[Punctuation]:
    """Return the producers' punctuation of two partitions, sorted by epoch."""
    found = [
        decode_punctuation(value)
        for partition in range(2)
        for value in log.values(Role.REPORTS, partition)
        if kind_of(value) is RecordType.PUNCTUATION
    ]
    return sorted(found, key=lambda punctuation: punctuation.epoch)


class BrokenTransport:
    """Transport without Kafka, whose process is killed while waiting."""

    def run(self, steps: Steps[Result], /) -> Result:
        for _ in steps:
            raise ConnectionError
        raise AssertionError
