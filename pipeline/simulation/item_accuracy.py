"""How far off the counts of one epoch are, in a simulation, where the truth is known.

Domains may be too large to look at every item. Looked at are the hundred items that truly most
users hold, where collisions and selection show, and four hundred others drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.estimate import Published
from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.results.asked import ask, usual_question
from dpstream.pipeline.results.epoch_counts import EpochCounts, counts_of
from dpstream.pipeline.results.questions import Answer, Items, Question
from dpstream.pipeline.stages.admission import Admission
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.pipeline.values.item_sums import ItemSums
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.row_errors import MOST_HELD, OTHERS, clipped_errors, normal_errors
from dpstream.topics.batches import Batch


@dataclass(frozen=True, slots=True, eq=False)
class ItemAccuracy:
    """One epoch of one trial.

    Attributes:
        reports: messages that users sent.
        messages_per_user: of those present, on average; None without any.
        predicted_error: what `mean_absolute_error` is to be expected, from the cells of the window
            and from how many hold the items looked at; None for a window that was withheld.
        errors: estimate minus truth, float64, shape (items looked at,).
        truth: how many users hold these items, int64, of the same shape.
        covered: whether the interval holds the truth, of the same shape.
        recall: share of the 32 items most held that are published, where not all items are.
        question: that `estimates` answer.
        estimates: of what was asked, with the truth.
    """

    reports: int
    messages_per_user: float | None
    predicted_error: float | None
    errors: NDArray[np.float64]
    truth: NDArray[np.int64]
    covered: NDArray[np.bool_]
    recall: float | None
    question: Question
    estimates: tuple[Answer, ...]

    @property
    def mean_absolute_error(self) -> float | None:
        """Of the items looked at; estimates below 0 are taken for 0, which a count is at least."""
        return float(self._clipped.mean()) if len(self.errors) else None

    @property
    def unclipped_error(self) -> float | None:
        """The same of the estimates as they are published, negative ones and all."""
        return float(np.abs(self.errors).mean()) if len(self.errors) else None

    @property
    def max_error(self) -> float | None:
        """The same of the worst of them."""
        return float(self._clipped.max()) if len(self.errors) else None

    @property
    def _clipped(self) -> NDArray[np.float64]:
        return np.abs(np.maximum(self.errors, -self.truth))

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "reports": self.reports,
            "messages_per_user": self.messages_per_user,
            "predicted_error": self.predicted_error,
            "mean_absolute_error": self.mean_absolute_error,
            "max_error": self.max_error,
            "unclipped_error": self.unclipped_error,
            "recall": self.recall,
            "estimates": self.estimates,
        }


def accuracy_of(
    record: EstimateRecord,
    window: EpochCounts,
    held: ItemSums,
    domain: ValueDomain,
    question: Question,
    reports: int,
    rng: np.random.Generator,
) -> ItemAccuracy:
    """Compare the counts of an epoch with the truth.

    Args:
        record: what was published of it.
        window: its counts.
        held: the truth.
        domain: of the job.
        question: whose answers are wanted.
        reports: messages that users sent.
        rng: draws the items to look at.
    """
    per_user = reports / record.contributors if record.contributors else None
    if window.counts is None:
        none, count = np.zeros(0), np.zeros(0, np.int64)
        return ItemAccuracy(reports, per_user, None, none, count, count > 0, None, question, ())
    items = items_to_compare(held, domain.size - 1, rng)
    answered = ask(window, domain, Items(tuple(items.tolist()))).answers
    # Of crowds that were withheld there is no answer.
    truth = held.of(np.array([each.item for each in answered], np.int64))
    numbers = np.array([(each.value, each.low, each.high) for each in answered])
    values, lows, highs = numbers.reshape(-1, 3).T
    answers = ask(window, domain, question)
    truths = question.truths(answers.answers, held, domain)
    return ItemAccuracy(
        reports=reports,
        messages_per_user=per_user,
        predicted_error=float(clipped_errors(_error_sample(window, answered), truth).mean())
        if answered
        else None,
        errors=values - truth,
        truth=truth,
        covered=(lows <= truth) & (truth <= highs),
        recall=_recall(record.estimate, held),
        question=question,
        estimates=tuple(
            replace(answer, truth=true)
            for answer, true in zip(answers.answers, truths, strict=True)
        ),
    )


def items_to_compare(held: ItemSums, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Up to a hundred items most held, and up to four hundred others, drawn at random.

    Args:
        held: the truth.
        size: of the domain.
        rng: for the others.
    """
    most = held.most(MOST_HELD)
    if size <= len(most) + OTHERS:
        others = np.setdiff1d(np.arange(1, size + 1), most)
    else:
        others = np.zeros(0, np.int64)
        while len(others) < OTHERS:
            drawn = rng.integers(1, size, OTHERS, np.int64, endpoint=True)
            others = np.setdiff1d(np.union1d(others, drawn), most)
        others = rng.choice(others, OTHERS, replace=False)
    return np.concatenate([most, others])


def _error_sample(window: EpochCounts, found: Sequence[Answer]) -> NDArray[np.float64]:
    errors = None if window.counts is None else window.counts.estimates.error_sample
    if errors is not None:
        return errors
    return normal_errors(float(np.mean([each.standard_deviation or 0.0 for each in found])))


def _recall(found: Published | None, held: ItemSums) -> float | None:
    if found is None or found.found_above is None:
        return None
    most = held.most(FOUND)
    return float(np.isin(most, found.numbers).mean()) if len(most) else None


@dataclass(frozen=True, slots=True)
class MeanAccuracy:
    """Means over epochs and trials; None where there is nothing to take a mean of.

    Attributes:
        predicted_error: mean absolute error of an item, as the counts have it.
        mean_absolute_error: as it is, of the items looked at, with estimates below 0 taken for 0.
        max_error: of the worst item of an epoch.
        unclipped_error: the mean of the estimates as they are published.
        recall: share of the 32 items most held that are published, where not all items are.
    """

    predicted_error: float | None
    mean_absolute_error: float | None
    max_error: float | None
    unclipped_error: float | None
    recall: float | None


def mean_accuracy(trials: Iterable[Mapping[int, ItemAccuracy]]) -> MeanAccuracy:
    """The means of some trials, of each of which the epochs are given."""
    epochs = [epoch for trial in trials for epoch in trial.values()]

    def mean(name: str) -> float | None:
        found = [getattr(epoch, name) for epoch in epochs]
        known = [value for value in found if value is not None]
        return float(np.mean(known)) if known else None

    return MeanAccuracy(**{field.name: mean(field.name) for field in fields(MeanAccuracy)})


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
