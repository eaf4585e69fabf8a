"""What is left of a simulated job over sets of items: the counts of each epoch, to be asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.actions import Steps
from pipeline.deployed_job import DeployedJob
from pipeline.epoch_counts import Counts, EpochCountsLog
from pipeline.input.item_log import ItemLog
from pipeline.memory import MemoryDriver
from pipeline.producer import Producer
from pipeline.simulate import SimulatedCluster, seeded_generators


@dataclass(frozen=True, slots=True, eq=False)
class CountedEpoch:
    """One epoch.

    Attributes:
        counts: None for a window that was withheld.
        truth: how many users hold each item, int64, shape (items,).
    """

    counts: Counts | None
    truth: NDArray[np.int64]


def counted_epochs(job: DeployedJob, log: ItemLog, seed: int) -> list[CountedEpoch]:
    """Simulate a job, as `pipeline.simulate.simulate` does, and read its counts as a query would.

    Args:
        job: deployed with empty topics; its protocol counts every epoch by itself.
        log: the items of every user; all of them are enrolled and present at every epoch of it.
        seed: makes the run repeatable.
    """
    generators = seeded_generators(seed)
    cluster = SimulatedCluster(job, generators)
    driver = MemoryDriver(cluster.log)
    with Producer(
        job, None, name="simulation", transport=driver, generators=generators
    ) as producer:
        producer.enrol(log.users)
        for epoch, values in enumerate(log.values_by_epoch(), 1):
            producer.report_all(epoch, values)
            producer.close(epoch)
            cluster.settle()
    found = driver.run(_read(job))
    return [CountedEpoch(*each) for each in zip(found, log.truth(job.domain), strict=True)]


def _read(job: DeployedJob) -> Steps[list[Counts | None]]:
    log = EpochCountsLog(job)
    found: list[Counts | None] = []
    while (epoch := (yield from log.next())) is not None:
        found.append(epoch.counts)
    return found
