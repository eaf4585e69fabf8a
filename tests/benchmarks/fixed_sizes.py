"""What it costs that the number and sizes of records say nothing: bytes and time of an epoch.

Run as ``python -m tests.benchmarks.fixed_sizes``. The same reports are sent in batches as small as
they are, and filled up as producers of jobs do that rely on the shuffle stage.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.simulation.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.names import Role

EPOCHS = 3


def jobs() -> Iterator[tuple[DeployedJob, int]]:
    """Jobs of every way to count, and how many devices there are in all."""
    asked: dict[str, tuple[dict[str, Any], int]] = {
        "shuffled_counts": ({"changes": 4}, 28_785),
        "count_min": ({"domain": labels(16_470), "items": 8}, 88_162),
        "hadamard": ({"domain": labels(1_000)}, 100_000),
    }
    for protocol, (parameters, users) in asked.items():
        values = {
            "name": protocol,
            "protocol": protocol,
            "parameters": {"epsilon": 1, "delta": 1e-6, **parameters},
            "epochs": {"count": 16},
            "shuffle": {"minimum": users},
        }
        yield deploy_job(make_job(values), deployed_at=0), users


def labels(number: int) -> list[str]:
    """A domain of so many items."""
    return [f"item {index}" for index in range(number)]


def sent(job: DeployedJob, devices: int) -> tuple[float, float, float]:
    """Records, bytes and milliseconds of an epoch of a producer of so many devices."""
    log, generator = MemoryLog(), seeded_generator(1)
    producer = Producer(
        job,
        None,
        name="benchmark",
        transport=MemoryDriver(log),
        generators=lambda purpose, number: generator,
    )
    producer.enrol([str(number) for number in range(devices)])
    slots = job.domain.slots
    held = np.ones(devices, np.int64)
    values = held if slots is None else np.tile(np.arange(1, slots + 1), (devices, 1))
    begun = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
    seconds = time.perf_counter() - begun
    producer.shut()
    records = [
        value
        for partition in range(job.topics.partitions)
        for value in log.values(Role.REPORTS, partition)
    ]
    return len(records) / EPOCHS, sum(map(len, records)) / EPOCHS, 1000 * seconds / EPOCHS


def main() -> None:
    """Print a table."""
    print(f"{'':18}{'devices':>9}{'':>12}{'records':>9}{'bytes':>14}{'ms':>10}")
    for job, users in jobs():
        for devices in (1, 100, users):
            with mock.patch.object(Producer, "_size", return_value=None):
                small = sent(job, devices)
            for name, (records, size, milliseconds) in (
                ("as small", small),
                ("filled up", sent(job, devices)),
            ):
                print(
                    f"{job.protocol:18}{devices:9,}{name:>12}{records:9,.1f}{size:14,.0f}"
                    f"{milliseconds:10,.1f}"
                )


if __name__ == "__main__":
    main()
