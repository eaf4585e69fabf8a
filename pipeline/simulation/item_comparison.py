"""Compares the windows of a simulated job whose epochs stand alone with the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.results.asked import usual_question
from dpstream.pipeline.results.epoch_counts import counts_of
from dpstream.pipeline.results.questions import Question
from dpstream.pipeline.simulation.item_accuracy import ItemAccuracy, accuracy_of
from dpstream.pipeline.stages.admission import Admission
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.pipeline.values.item_sums import ItemSums
from dpstream.topics.batches import Batch


class ItemComparison:
    """Compares the windows of a job whose epochs stand alone with the truth, one by one.

    Args:
        job: as deployed.
        log: what users hold.
        topics: of the job.
        keys: that open its reports, where they are sealed.
        generators: by purpose and number; they draw the items to look at.
        question: asked of every epoch; None for a usual one.

    Attributes:
        accuracies: by epoch.
    """

    def __init__(
        self,
        job: DeployedJob,
        log: ItemLog,
        topics: MemoryLog,
        keys: KeyRing,
        generators: Callable[[str, int], np.random.Generator],
        question: Question | None,
    ) -> None:
        self._job, self._log, self._generators = job, log, generators
        self._topics = topics
        self._admission = producer_admission(job, keys)
        self._epochs = EpochLog(job)
        self._question = usual_question(job) if question is None else question
        self._messages: dict[int, int] = {}
        self.accuracies: dict[int, ItemAccuracy] = {}

    def count_messages(self, epoch: int) -> None:
        """Count what was sent, before the shuffle stage deletes it."""
        self._messages[epoch] = messages_sent(self._job, epoch, self._topics, self._admission)

    def compare(self, record: EstimateRecord) -> None:
        """Compare the next epoch, of which this was published."""
        epoch = next(self._epochs.read(MemoryDriver(self._topics).run))
        self.accuracies[record.epoch] = accuracy_of(
            record,
            counts_of(self._job, epoch),
            ItemSums(*self._log.counts_at(record.epoch)),
            self._job.domain,
            self._question,
            self._messages[record.epoch],
            self._generators("items to look at", record.epoch),
        )


def messages_sent(job: DeployedJob, epoch: int, topics: MemoryLog, admission: Admission) -> int:
    """How many messages of an epoch are in the raw topic, which the shuffle stage empties."""
    partition = job.topics.partition_of(epoch)
    admitted = (
        admission.admit(partition, value)
        for role in job.report_roles
        for value in topics.values(role, partition)
    )
    batches = (each for each in admitted if isinstance(each, Batch))
    return sum(batch.words.messages for batch in batches if batch.epoch == epoch)
