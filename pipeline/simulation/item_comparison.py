"""Compares the windows of a simulated job whose epochs stand alone with the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.devices.item_log import ItemLog
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.results.epoch_counts import counts_of
from pipeline.results.item_sums import ItemSums
from pipeline.results.questions import Question, usual_question
from pipeline.simulation.item_accuracy import ItemAccuracy, accuracy_of
from pipeline.simulation.memory import MemoryDriver, MemoryLog
from pipeline.stages.epoch_log import EpochLog
from pipeline.stages.estimate_records import EstimateRecord
from topics.batches import decode_batch
from topics.frames import Kind, kind_of
from topics.names import Role


class ItemComparison:
    """Compares the windows of a job whose epochs stand alone with the truth, one by one.

    Args:
        job: as deployed.
        log: what users hold.
        topics: of the job.
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
        generators: Callable[[str, int], np.random.Generator],
        question: Question | None,
    ) -> None:
        self._job, self._log, self._generators = job, log, generators
        self._topics = topics
        self._epochs = EpochLog(job)
        self._question = usual_question(job) if question is None else question
        self._messages: dict[int, int] = {}
        self.accuracies: dict[int, ItemAccuracy] = {}

    def count_messages(self, epoch: int) -> None:
        """Count what was sent, before the shuffle stage deletes it."""
        values = self._topics.values(Role.REPORTS, self._job.partition_of(epoch))
        batches = (decode_batch(value) for value in values if kind_of(value) is Kind.BATCH)
        self._messages[epoch] = sum(
            batch.words.messages for batch in batches if batch.epoch == epoch
        )

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
