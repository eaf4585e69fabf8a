"""A producer on topics in memory, with repeatable randomness."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpstream.pipeline.devices.producer import Generators, Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator


def seeded(seed: int) -> Generators:
    """Generators of a producer; the same for the same seed."""

    def generators(purpose: str, number: int) -> np.random.Generator:
        return seeded_generator(seed, len(purpose), number)

    return generators


def open_producer(job: DeployedJob, folder: Path | None, log: MemoryLog, seed: int = 1) -> Producer:
    """A producer named gateway."""
    return Producer(
        job, folder, name="gateway", transport=MemoryDriver(log), generators=seeded(seed)
    )
