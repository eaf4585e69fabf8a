"""Errors in one epoch's counts, in a simulation with known ground truth.

A domain can be too large to compare every item. The comparison covers the 100 most frequent items,
which show the effects of collisions and selection, and 400 randomly chosen other items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.estimate import Published
from dpstream.pipeline.devices.ground_truths import CountedItems, mean_counts
from dpstream.pipeline.devices.item_log import ItemLog, ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.results.counts_queries import Answer, CountsQuery, Items
from dpstream.pipeline.results.epoch_counts import CountsCells, EpochCounts, counts_of
from dpstream.pipeline.results.query_options import default_counts_query, evaluate
from dpstream.pipeline.stages.admission import Admission
from dpstream.pipeline.stages.epoch_log import EpochLog
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.pipeline.values.item_sums import ItemSums
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.row_errors import OTHERS, TOP_ITEMS, clipped_errors, normal_errors
from dpstream.topics.batches import Batch


@dataclass(frozen=True, slots=True, eq=False)
class ItemAccuracy:
    """Accuracy at one epoch of one trial.

    Attributes:
        messages_per_user: Mean number of messages per present user; None without users.
        predicted_error: Expected `mean_absolute_error`; None for a suppressed window.
        errors: Estimate minus ground truth, float64, shape (compared items,).
        ground_truth: Number of users with each compared item, same shape; a mean if the estimates
            are.
        covered: True where the interval contains the ground truth, bool, same shape.
        recall: Published fraction of the 32 most frequent items; None if all items are published.
        estimates: Answers to `counts_query`, with the ground truth.
    """

    reports: int
    messages_per_user: float | None
    predicted_error: float | None
    errors: NDArray[np.float64]
    ground_truth: NDArray[np.number[Any]]
    covered: NDArray[np.bool_]
    recall: float | None
    counts_query: CountsQuery
    estimates: tuple[Answer, ...]

    @property
    def mean_absolute_error(self) -> float | None:
        """Mean absolute error over the compared items, with negative estimates clipped to 0."""
        return float(self._clipped.mean()) if len(self.errors) else None

    @property
    def unclipped_error(self) -> float | None:
        return float(np.abs(self.errors).mean()) if len(self.errors) else None

    @property
    def max_error(self) -> float | None:
        return float(self._clipped.max()) if len(self.errors) else None

    @property
    def _clipped(self) -> NDArray[np.float64]:
        return np.asarray(np.abs(np.maximum(self.errors, -self.ground_truth)), np.float64)

    def to_json(self) -> dict[str, Any]:
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
    counts_query: CountsQuery,
    reports: int,
    rng: np.random.Generator,
) -> ItemAccuracy:
    """Compare an epoch's counts with the ground truth `held`; users sent `reports` messages."""
    per_user = reports / record.contributors if record.contributors else None
    if window.counts is None:
        none, count = np.zeros(0), np.zeros(0, np.int64)
        return ItemAccuracy(reports, per_user, None, none, count, count > 0, None, counts_query, ())
    items = items_to_compare(held, domain.size - 1, rng)
    answered = evaluate(window, domain, Items(tuple(items.tolist()))).answers
    # Suppressed crowds have no answer.
    ground_truth = held.of(np.array([each.item for each in answered], np.int64))
    numbers = np.array([(each.value, each.ci95_low, each.ci95_high) for each in answered])
    values, lows, highs = numbers.reshape(-1, 3).T
    answers = evaluate(window, domain, counts_query)
    ground_truths = counts_query.ground_truths(answers.answers, held, domain)
    return ItemAccuracy(
        reports=reports,
        messages_per_user=per_user,
        predicted_error=float(clipped_errors(_error_sample(window, answered), ground_truth).mean())
        if answered
        else None,
        errors=values - ground_truth,
        ground_truth=ground_truth,
        covered=(lows <= ground_truth) & (ground_truth <= highs),
        recall=_recall(record.estimate, held),
        counts_query=counts_query,
        estimates=tuple(
            replace(answer, ground_truth=true)
            for answer, true in zip(answers.answers, ground_truths, strict=True)
        ),
    )


def items_to_compare(held: ItemSums, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    most = held.most(TOP_ITEMS)
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
    return normal_errors(float(np.mean([each.standard_error or 0.0 for each in found])))


def _recall(found: Published | None, held: ItemSums) -> float | None:
    if found is None or found.detection_threshold is None:
        return None
    most = held.most(FOUND)
    return float(np.isin(most, found.numbers).mean()) if len(most) else None


@dataclass(frozen=True, slots=True)
class MeanAccuracy:
    """Means of `ItemAccuracy`'s fields over epochs and trials; a mean is None without values."""

    predicted_error: float | None
    mean_absolute_error: float | None
    max_error: float | None
    unclipped_error: float | None
    recall: float | None


def mean_accuracy(trials: Iterable[Mapping[int, ItemAccuracy]]) -> MeanAccuracy:
    epochs = [epoch for trial in trials for epoch in trial.values()]

    def mean(name: str) -> float | None:
        found = [getattr(epoch, name) for epoch in epochs]
        known = [value for value in found if value is not None]
        return float(np.mean(known)) if known else None

    return MeanAccuracy(**{field.name: mean(field.name) for field in fields(MeanAccuracy)})


def compares_items(job: DeployedJob, log: ValueLog) -> bool:
    return isinstance(log, ItemLog) or isinstance(job.aggregator(), CountsCells)


class ItemComparison:
    """Compare the windows of a job, one by one, with the ground truth.

    A window is that of an epoch, or of all epochs that its estimate covers. `generators` draw the
    items to compare. `counts_query` is answered at every epoch; None means a default query.
    """

    def __init__(
        self,
        job: DeployedJob,
        log: CountedItems,
        topics: MemoryLog,
        keys: KeyRing,
        generators: Callable[[str, int], np.random.Generator],
        counts_query: CountsQuery | None,
    ) -> None:
        self._job, self._log, self._generators = job, log, generators
        self._topics = topics
        self._admission = producer_admission(job, keys)
        self._epochs = EpochLog(job)
        self._counts_query = default_counts_query(job) if counts_query is None else counts_query
        self._messages: dict[int, int] = {}
        self._windows: deque[EpochCounts] = deque(maxlen=job.added_epochs or 1)
        self.accuracies: dict[int, ItemAccuracy] = {}

    def count_messages(self, epoch: int) -> None:
        self._messages[epoch] = messages_sent(self._job, epoch, self._topics, self._admission)

    def compare(self, record: EstimateRecord) -> None:
        epoch = next(self._epochs.read(MemoryDriver(self._topics).run))
        if self._job.epochs.local(record.epoch) == 1:
            self._windows.clear()
        self._windows.append(counts_of(self._job, epoch))
        now, total = self._windows[-1], reduce(EpochCounts.plus, self._windows)
        if self._job.added_epochs == self._job.epochs.count:
            # No epoch leaves the window: the sum takes the place of its parts.
            self._windows = deque([total])
        window = now if now.counts is None else total
        self.accuracies[record.epoch] = accuracy_of(
            record,
            window,
            mean_counts(self._log, window.epochs or (record.epoch,)),
            self._job.domain,
            self._counts_query,
            self._messages[record.epoch],
            self._generators("items to evaluate", record.epoch),
        )


def messages_sent(job: DeployedJob, epoch: int, topics: MemoryLog, admission: Admission) -> int:
    partition = job.topics.partition_of(epoch)
    admitted = (
        admission.admit(partition, value)
        for role in job.route.reports
        for value in topics.values(role, partition)
    )
    batches = (each for each in admitted if isinstance(each, Batch))
    return sum(batch.words.messages for batch in batches if batch.epoch == epoch)
