"""What is left of a simulated job over sets of items: the counts of each epoch, to be asked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregators.counts import Window
from pipeline.devices.item_log import ItemLog
from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.results.epoch_counts import counts_of
from pipeline.simulation.memory import MemoryDriver
from pipeline.simulation.simulate import SimulatedCluster, seeded_generators
from pipeline.stages.epoch_log import EpochLog


@dataclass(frozen=True, slots=True, eq=False)
class CountedEpoch:
    """One epoch.

    Attributes:
        counts: None for a window that was withheld.
        truth: how many users hold each item, int64, shape (items,).
    """

    counts: Window | None
    truth: NDArray[np.int64]


def counted_epochs(job: DeployedJob, log: ItemLog, seed: int) -> list[CountedEpoch]:
    """Simulate a job, as `simulation.simulate` does, and read its counts as a query would.

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
    found = (counts_of(job, epoch).counts for epoch in EpochLog(job).read(driver.run))
    return [CountedEpoch(*each) for each in zip(found, log.truth(job.domain), strict=True)]
