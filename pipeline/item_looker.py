"""Looks at every window of a simulated job whose epochs stand alone, as a query would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipeline.deployed_job import DeployedJob
from pipeline.epoch_counts import EpochCountsLog
from pipeline.estimate_records import EstimateRecord
from pipeline.input.item_log import ItemLog
from pipeline.item_accuracy import HeldItems, ItemAccuracy, accuracy_of
from pipeline.memory import MemoryDriver, MemoryLog
from pipeline.questions import Question, sets_of, usual_question
from topics.batches import decode_batch
from topics.frames import Kind, kind_of
from topics.names import Role


class ItemLooker:
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
        self._windows = EpochCountsLog(job)
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

    def look(self, record: EstimateRecord) -> None:
        """Compare the next epoch, of which this was published."""
        window = MemoryDriver(self._topics).run(self._windows.next())
        assert window is not None
        self.accuracies[record.epoch] = accuracy_of(
            record,
            window,
            HeldItems(*self._log.counts_at(record.epoch)),
            sets_of(self._job.domain),
            self._question,
            self._messages[record.epoch],
            self._generators("items to look at", record.epoch),
        )
