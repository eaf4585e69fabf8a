"""Estimate the number of users with each item from answers given at few epochs of a horizon.

An answer lies in the set of an item with probability a if its user has the item at that epoch, and
with probability b otherwise. If a share h of the n answers of an epoch lies in the set, then
N (h - b) / (a - b) is an unbiased estimate of how many of the N enrolled users have the item. If f
is their true share, the variance is

    N^2 ((f a (1 - a) + (1 - f) b (1 - b)) / (n (a - b)^2) + (N - n) / (n (N - 1)) f (1 - f)).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.epoch_tables import MOST_RESUMED, ResumableTables, WordAggregator
from dpstream.aggregators.estimate import NORMAL_95, Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.hyperplane_sums import hyperplane_sums
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.item_domains import MOST_PUBLISHED
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.sampled_response import SampledResponseLaw
from dpstream.randomizers.set_systems import Subsets

if TYPE_CHECKING:
    from dpstream.aggregators.smoothed_estimates import SmoothedEstimates

MOST_SMOOTHED: Final = 32
"""Maximum number of items that are smoothed: each takes tens of milliseconds for 100 epochs."""


class SampledItemsAggregator(WordAggregator[SampledResponseLaw]):
    """Count the answers at each epoch: by item for subsets, by point for hyperplanes.

    >>> from dpstream.randomizers.composed import ComposedLaw
    >>> law = SampledResponseLaw(1, 3.0, ComposedLaw((2, 1)), Subsets(2, 1), 2, True, 1)
    >>> aggregator = SampledItemsAggregator(law)
    >>> aggregator.add(1, np.array([[1], [1], [0], [1]], np.uint8), None)
    >>> aggregator.estimate(1, Participation.constant(1, 4)).values.round(9).tolist()
    [-1.0, 5.0]
    """

    @property
    def cells(self) -> int:
        return cells_counted(self.law)

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        if isinstance(self.law.sets, PointSpace):
            super()._count(epoch, words, counts)
        else:
            self._tables.add_table(epoch, counts_of_answers(self.law, words[:, 0], counts))

    def estimate(
        self, epoch: int, participation: Participation
    ) -> ItemEstimates | HeavyHitters | None:
        """Estimate all items or the top items, each with the error of the least accurate item.

        Users who answer are assumed to be a simple random sample of the enrolled users.
        """
        found = self._items(epoch, participation)
        return None if found is None else found.listed(MOST_PUBLISHED) or found.top(FOUND)

    def _items(self, epoch: int, participation: Participation) -> ItemEstimates | None:
        counts = self._tables.counts(epoch)
        if counts is None:
            return None
        reports, inside = answers_inside(self.law, counts)
        population = max(1, int(participation.population[epoch]))
        own, other = map(float, self.law.probabilities)
        shares = inside / reports
        variances = item_variances(shares, reports, population, own, other)
        deviation = math.sqrt(float(variances.max()))
        values = population * (shares - other) / (own - other)
        return ItemEstimates(values, deviation, NORMAL_95 * deviation, reports, population)


class ResumableItemsAggregator(ResumableTables[SampledResponseLaw], SampledItemsAggregator):
    """Store few enough counts to keep them with an estimate."""


class SmoothedItemsAggregator(ResumableItemsAggregator):
    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        from dpstream.aggregators.smoothed_estimates import smoothed_samples

        return smoothed_samples(
            [self._items(epoch, participation) for epoch in range(1, last_epoch + 1)],
            participation.population[1 : last_epoch + 1],
            self.law.items,
            self.law.flip_variance,
        )


def sampled_items(law: SampledResponseLaw) -> SampledItemsAggregator:
    if law.items <= MOST_SMOOTHED:
        return SmoothedItemsAggregator(law)
    aggregator = SampledItemsAggregator(law)
    return ResumableItemsAggregator(law) if aggregator.cells <= MOST_RESUMED else aggregator


def cells_counted(law: SampledResponseLaw) -> int:
    return 1 + law.items if isinstance(law.sets, Subsets) else law.sets.points


def counts_of_answers(
    law: SampledResponseLaw,
    points: NDArray[np.unsignedinteger],
    counts: NDArray[np.unsignedinteger] | None,
) -> NDArray[np.int64]:
    """Count answers by point; or, for subsets, all answers and those in the set of each item.

    `points` are the answers, shape (n,), with multiplicities `counts`; None means 1 each.
    """
    times = np.ones(len(points), np.int64) if counts is None else counts.astype(np.int64)
    if isinstance(law.sets, PointSpace):
        table = np.zeros(law.sets.points, np.int64)
        np.add.at(table, points, times)
        return table
    inside = law.sets.members()[points, -law.items :]
    return np.concatenate([times.sum(keepdims=True), times @ inside])


def answers_inside(
    law: SampledResponseLaw, counts: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64]]:
    if isinstance(law.sets, Subsets):
        return int(counts[0]), counts[1:]
    first = int(not law.complete)
    return int(counts.sum()), hyperplane_sums(law.sets, counts, first + law.items)[first:]


def item_variances(
    shares: NDArray[np.float64], reports: int, population: int, own: float, other: float
) -> NDArray[np.float64]:
    """Return variances of estimated counts: unbiased, unless shares are clipped to [other, own].

    Args:
        shares: Shares of the answers in the set of each item, shape (items,).
        reports: Number of answers, at least 1.
        population: Number of enrolled users.
        own: Probability of an answer in the set of an item that its user has.
        other: Probability of an answer in the set of another item.
    """
    likely = np.clip(shares, other, own)
    having = (likely - other) / (own - other)
    absent = max(0.0, 1 / reports - 1 / population) * reports / max(1, reports - 1)
    flips = (having * own * (1 - own) + (1 - having) * other * (1 - other)) / population
    variances = (absent * likely * (1 - likely) + flips) * (population / (own - other)) ** 2
    return np.asarray(variances, np.float64)
