"""Simulate a job over sets of items and return the counts of each epoch for queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import CountedWindow
from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.memory import MemoryDriver, SimulatedCluster, seeded_generators
from dpstream.pipeline.results.epoch_counts import counts_of, window_of
from dpstream.pipeline.simulation.item_accuracy import messages_sent
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.randomizers.counted_messages import CountedMessages
from experiments.evaluation.images import NumberedUsers
from experiments.evaluation.unnamed_producer import (
    MOST_TOPIC_BYTES,
    UnnamedProducer,
    generators_of,
    producers_needed,
    topic_bytes,
)

Truth: TypeAlias = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class CountedEpoch:
    """Counts and ground truth of one epoch.

    Attributes:
        counts: Estimated counts; None for a suppressed window.
        ground_truth: True number of users per item, int64, shape (items,); or the true value of
            another estimated quantity, float64.
        messages: Number of messages from all users, dummies included; 0 if not counted.
    """

    counts: CountedWindow | None
    ground_truth: Truth
    messages: int = 0


def counted_epochs(job: DeployedJob, log: ItemLog, seed: int) -> list[CountedEpoch]:
    """Simulate a job like `simulation.simulate`, and return the counts that queries would read.

    All users in the log are enrolled and present at every epoch. Users without names, as in images,
    are divided among as many producers as necessary. If their reports would fill topics beyond
    `MOST_TOPIC_BYTES`, devices report directly to the aggregator.
    """
    generators = seeded_generators(seed)
    if isinstance(log.users, NumberedUsers) and added_up_at_once(job, len(log.users)):
        return [_added_up(job, log, generators)]
    cluster = SimulatedCluster(job, generators)
    driver = MemoryDriver(cluster.log)
    admission, messages = producer_admission(cluster.job, cluster.keys), []
    if isinstance(log.users, NumberedUsers):
        _report_unnamed(job, log, driver, generators)
        messages.append(messages_sent(cluster.job, 1, cluster.log, admission))
        cluster.settle()
    else:
        with Producer(
            job, None, name="simulation", transport=driver, generators=generators
        ) as producer:
            producer.enroll(log.users)
            for epoch, values in enumerate(log.values_by_epoch(), 1):
                producer.report_all(epoch, values)
                producer.close(epoch)
                messages.append(messages_sent(cluster.job, epoch, cluster.log, admission))
                cluster.settle()
    found = (counts_of(job, epoch).counts for epoch in EpochLog(job).read(driver.run))
    return [
        CountedEpoch(*each)
        for each in zip(found, log.ground_truth(job.domain), messages, strict=True)
    ]


def added_up_at_once(job: DeployedJob, users: int) -> bool:
    """Return whether an epoch's reports exceed the limit for topics."""
    needed = topic_bytes(job, users)
    return needed is not None and needed > MOST_TOPIC_BYTES


def _report_unnamed(
    job: DeployedJob,
    log: ItemLog,
    driver: MemoryDriver,
    generators: Callable[[str, int], np.random.Generator],
) -> None:
    """Report the only epoch from as many producers as necessary, one after another."""
    (values,) = log.values_by_epoch()
    # All producers register before any stage reads.
    parts = np.array_split(values, producers_needed(job, len(values)))
    for number, part in enumerate(parts):
        with UnnamedProducer(
            job,
            None,
            name=f"simulation-{number}",
            transport=driver,
            generators=generators_of(generators, number),
        ) as producer:
            producer.enroll_unnamed(len(part))
            producer.report_all(1, part)
            producer.close(1)


def _added_up(
    job: DeployedJob, log: ItemLog, generators: Callable[[str, int], np.random.Generator]
) -> CountedEpoch:
    (values,) = log.values_by_epoch()
    devices, aggregator = job.randomizer(), job.aggregator()
    devices.enroll(len(values), generators("enroll", 0))
    reports = devices.report(1, values, None, generators("report", 1))
    if isinstance(reports, CountedMessages):
        aggregator.add(1, reports.values, reports.counts)
        messages = int(reports.counts.sum())
    else:
        aggregator.add(1, reports, None)
        messages = len(reports)
    counts = window_of(aggregator, 1, Participation.constant(1, len(values)))
    return CountedEpoch(counts, log.ground_truth(job.domain)[0], messages)
