"""Sums of an epoch's published numbers, with what their errors have in common.

Rows are numbered like items, from 1. A mean is read as a sum over its users, so that all amounts
can be divided by each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dpstream.aggregators.estimate import INCOMPLETE, NORMAL_95
from dpstream.aggregators.item_covariances import ItemCovariances
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.ratios import (
    Amount,
    DerivedNumber,
    Margin,
    correlation_of,
    difference,
    difference_of_groups,
    difference_of_parts,
    margin,
    ratio,
)
from dpstream.pipeline.results.roll_ups import WindowRecord
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.panels import PanelDomain

MOST_COMPLEMENTED: Final = 256
"""Maximum number of items of which a sum can be the number of users minus the other items."""

_OVERLAP: Final = "the groups have some, but not all, of their users in common"
_SUPPRESSED: Final = "too few devices of the group answered"
_INCOMPLETE: Final = "too few devices answered in some epoch of the period"
_UNNAMED: Final = "the value counted as other at this epoch"


@dataclass(frozen=True, slots=True)
class Side:
    """A sum of items that is divided or compared.

    Attributes:
        items: Numbers of the items, from 1.
        whole: Items whose sum estimates the number of users in its group; empty if that number is
            public.
    """

    name: str
    items: tuple[int, ...]
    whole: tuple[int, ...] = ()


class EpochCells(ABC):
    """Sums of an epoch's items, as numbers of users."""

    @abstractmethod
    def amount(self, items: Sequence[int]) -> Amount: ...

    @abstractmethod
    def covariance(self, first: Sequence[int], second: Sequence[int]) -> float: ...

    @abstractmethod
    def users(self, items: Sequence[int]) -> float | None:
        """Return the public number of users among whom the items are counted.

        None if these are groups with some, but not all, users in common.
        """

    def apart(self, first: Sequence[int], second: Sequence[int]) -> bool:
        """Return whether the two sums are about different groups of users."""
        return False

    def in_users(self, items: Sequence[int]) -> bool:
        return True

    def hides(self, items: Sequence[int]) -> bool:
        """Return whether readers are not shown any of the items at this epoch."""
        return False

    def missing(self, items: Sequence[int]) -> str | None:
        """Return why the items are not published, if they are not."""
        return None

    def ratio(self, first: Side, second: Side, quantile: float) -> DerivedNumber:
        if reason := self._missing(first, second):
            return DerivedNumber(refused=reason)
        x, y = self.amount(first.items), self.amount(second.items)
        return ratio(x, y, self.covariance(first.items, second.items), quantile)

    def share(self, side: Side, quantile: float) -> DerivedNumber:
        """Return a sum's share of its group, not cut to [0, 1]; for a mean, the mean."""
        if side.whole:
            return self.ratio(side, Side("", side.whole), quantile)
        if reason := self._missing(side):
            return DerivedNumber(refused=reason)
        users = self.users(side.items)
        if users is None:
            return DerivedNumber(refused=_OVERLAP)
        return ratio(self.amount(side.items), Amount(users), quantile=quantile)

    def size(self, side: Side) -> float:
        """Return the number of users in the group of a sum, perhaps estimated; NaN if unknown."""
        if side.whole:
            return self.amount(side.whole).value
        users = self.users(side.items)
        return math.nan if users is None else users

    def difference(self, first: Side, second: Side, quantile: float) -> DerivedNumber:
        """Return the difference of two shares (the first minus the second), or of two means."""
        if first.whole or second.whole:
            shares = self.share(first, quantile), self.share(second, quantile)
            if shares[0].refused or shares[1].refused:
                return difference(*shares)
            return difference(*shares, self._correlation(first, second))
        if reason := self._missing(first, second):
            return DerivedNumber(refused=reason)
        users = self.users(first.items), self.users(second.items)
        if users[0] is None or users[1] is None:
            return DerivedNumber(refused=_OVERLAP)
        x, y = self.amount(first.items), self.amount(second.items)
        if self.apart(first.items, second.items):
            counts = self.in_users(first.items)
            return difference_of_groups(x, users[0], y, users[1], quantile, of_counts=counts)
        common = self.covariance(first.items, second.items)
        return difference_of_parts(x, users[0], y, users[1], common, quantile)

    def _correlation(self, first: Side, second: Side) -> float:
        """Return the correlation of two shares, at least one of which has an estimated whole."""
        if not (first.whole and second.whole):
            return 0.0
        sums = first.items, first.whole, second.items, second.whole
        values = [self.amount(each).value for each in sums]
        covariances = [[self.covariance(one, other) for other in sums] for one in sums]
        ratios = values[0] / values[1], values[2] / values[3]
        return correlation_of(ratios, np.array(covariances))

    def _missing(self, *sides: Side) -> str | None:
        reasons = (self.missing((*side.items, *side.whole)) for side in sides)
        return next((reason for reason in reasons if reason is not None), None)


class ItemCells(EpochCells):
    def __init__(
        self,
        estimate: ItemEstimates,
        items: Sequence[int],
        covariances: ItemCovariances,
        answers: int,
        *,
        complete: bool,
    ) -> None:
        """Read `items`; `complete` states that every user has exactly one of all items."""
        self._users, every = estimate.population, estimate.numbers
        self._heads = self._users if complete and len(every) <= MOST_COMPLEMENTED else None
        self._numbers = np.unique(items) if self._heads is None else every
        self._values, lows, highs = estimate.intervals_of(self._numbers)
        self._covariances = covariances(answers, self._users, self._values)
        np.fill_diagonal(self._covariances, ((highs - lows) / 2 / NORMAL_95) ** 2)

    def amount(self, items: Sequence[int]) -> Amount:
        return self._margin(items).amount(self._values, self._covariances)

    def covariance(self, first: Sequence[int], second: Sequence[int]) -> float:
        return self._margin(first).covariance(self._margin(second), self._covariances)

    def users(self, items: Sequence[int]) -> float:
        return self._users

    def _margin(self, items: Sequence[int]) -> Margin:
        return margin(np.isin(self._numbers, items), self._covariances, self._heads)


class PanelCells(EpochCells):
    """Rows of several questions to users in public groups.

    Different questions and groups have different devices, so their errors are independent. Two rows
    about one answer have the error of the narrower one in common. Two answers to one question are
    correlated, because they come from the same devices.
    """

    def __init__(self, job: DeployedJob, estimate: PanelEstimates, domain: PanelDomain) -> None:
        self._estimate, self._rows = estimate, domain.rows
        questions = domain.questions
        self._means = {at for at, question in enumerate(questions) if question.answer == "mean"}
        of_question = job.protocol_entry.aggregation.question_covariances
        self._covariances = [of_question(job.law, at) for at in range(len(questions))]
        self._groups = [frozenset(row.groups) for row in domain.rows]

    def amount(self, items: Sequence[int]) -> Amount:
        value = sum(self._scale(item) * float(self._estimate.values[item - 1]) for item in items)
        return Amount(value, max(self.covariance(items, items), 0.0))

    def covariance(self, first: Sequence[int], second: Sequence[int]) -> float:
        return sum(self._common(one, other) for one in first for other in second)

    def users(self, items: Sequence[int]) -> float | None:
        groups = {self._groups[item - 1]: item for item in items}
        if len(frozenset().union(*groups)) != sum(map(len, groups)):
            return None
        return float(sum(self._estimate.sizes[item - 1] for item in groups.values()))

    def apart(self, first: Sequence[int], second: Sequence[int]) -> bool:
        one, other = (
            frozenset().union(*(self._groups[item - 1] for item in items))
            for items in (first, second)
        )
        return one.isdisjoint(other)

    def in_users(self, items: Sequence[int]) -> bool:
        return all(self._rows[item - 1].question not in self._means for item in items)

    def hides(self, items: Sequence[int]) -> bool:
        return not self._estimate.hidden.isdisjoint(item - 1 for item in items)

    def missing(self, items: Sequence[int]) -> str | None:
        if self.hides(items):
            return _UNNAMED
        known = np.isfinite(self._estimate.values[np.array(items, np.intp) - 1])
        if known.all():
            return None
        return _INCOMPLETE if INCOMPLETE in self._estimate.flags else _SUPPRESSED

    def _scale(self, item: int) -> float:
        mean = self._rows[item - 1].question in self._means
        return float(self._estimate.sizes[item - 1]) if mean else 1.0

    def _common(self, one: int, other: int) -> float:
        row, second = self._rows[one - 1], self._rows[other - 1]
        shared = self._groups[one - 1] & self._groups[other - 1]
        if row.question != second.question or not shared:
            return 0.0
        narrow = one if len(self._groups[one - 1]) <= len(self._groups[other - 1]) else other
        if row.cell != second.cell:
            covariances = self._covariances[row.question]
            return self._estimate.covariance(one - 1, other - 1, covariances)
        # If only a part is shared, its variance is unknown. Then 0 gives wider intervals.
        if shared != self._groups[narrow - 1]:
            return 0.0
        deviation = self._scale(narrow) * float(self._estimate.standard_errors[narrow - 1])
        return deviation**2


def epoch_cells(
    job: DeployedJob,
    record: EstimateRecord,
    items: Sequence[int],
    covariances: ItemCovariances | None,
) -> EpochCells | None:
    estimate, entry, domain = record.estimate, job.protocol_entry, job.domain
    if isinstance(estimate, PanelEstimates) and isinstance(domain, PanelDomain):
        return PanelCells(job, estimate, domain)
    listed = None if estimate is None else estimate.listed()
    if listed is None or not listed.population or covariances is None:
        return None
    answers = listed.reports
    if entry.sampled is None:
        averaged = record.averaged if isinstance(record, WindowRecord) else 1
        answers = record.contributors * (averaged if entry.per_epoch else 1)
    complete = bool(getattr(job.parameters, "complete", False))
    return ItemCells(listed, items, covariances, answers, complete=complete)
