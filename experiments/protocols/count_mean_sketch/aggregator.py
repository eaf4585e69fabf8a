"""Estimate counts from a count-mean sketch.

An item has one bucket in each of k rows of m buckets. Its buckets have S_x messages in total, and
all buckets together have S. Each bit is reversed with probability p. So of n contributors,
C_x = (S_x - n p) / (1 - 2 p) are in the item's buckets, and C = (S - n m p) / (1 - 2 p) have any
item. One in m users without item x is in its buckets by chance. So, on average over all hashes, the
number of users with the item is f = m / (m - 1) (C_x - C / m).

The variance of f is the sum of three terms:

* m / (m - 1) n p (1 - p) / (1 - 2 p)^2 from reversed bits
* C / m from other users whose row puts them in the same bucket as the item
* 1 / (k m) times the sum of squared counts, from items that share more of its buckets than average
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND
from dpstream.aggregators.counts import added_up
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_counts import item_estimates
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.message_aggregator import MessageAggregator
from dpstream.randomizers.item_domains import MOST_PUBLISHED
from experiments.protocols.count_mean_sketch import CountMeanSketchLaw


class CountMeanSketchAggregator(MessageAggregator[CountMeanSketchLaw]):
    """Count the messages in each bucket of each row, for every epoch."""

    ordered: ClassVar[bool] = False

    def _words(self, epoch: int) -> int:
        return self.law.words

    def estimate(
        self, epoch: int, participation: Participation
    ) -> ItemEstimates | HeavyHitters | None:
        """Estimate the number of users with each item at an epoch; return None if suppressed.

        For a domain too large to list, only top items are published, each with the error of a rare
        item.
        """
        found = self._of(epoch, participation)
        return None if found is None else found.listed(MOST_PUBLISHED) or found.top(FOUND)

    def window(self, epochs: Sequence[int], participation: Participation) -> ItemEstimates | None:
        return added_up(self._of(epoch, participation) for epoch in epochs)

    def _of(self, epoch: int, participation: Participation) -> ItemEstimates | None:
        contributors = int(participation.contributors[epoch])
        if contributors < self.law.minimum:
            return None
        law, (own, received) = self.law, self._sums(epoch)
        reversed_ = float(law.bits.flips.probability)
        contrast = 1 - 2 * reversed_
        senders = participation.senders(epoch)
        inside = (own - senders * reversed_) / contrast
        holders = (received - senders * law.buckets * reversed_) / contrast
        others = law.buckets / (law.buckets - 1)
        counts = others * (inside - holders / law.buckets)
        noise = bits_variance(law, senders)
        # The mean of a squared estimate is the squared true count plus the noise variance.
        squares = max(0.0, float(np.square(counts).sum()) - len(counts) * noise)
        few = max(0.0, float(counts.min())) if len(counts) > 1 else float(counts[0])
        noise += shared_variance(law, max(0.0, holders - few), max(0.0, squares - few**2))
        reports = received * contributors // senders
        return item_estimates(counts, noise, np.max, reports, epoch, participation)

    def _sums(self, epoch: int) -> tuple[NDArray[np.float64], int]:
        """Return the number of messages in each item's buckets, shape (items,), and in total."""
        law, received = self.law, self._received.of(epoch)
        items, own = np.arange(1, law.items + 1), np.zeros(law.items, np.int64)
        words = received.words.astype(np.int64)
        starts = np.searchsorted(words, np.arange(law.rows + 1) * law.buckets)
        for row in range(law.rows):
            part = slice(starts[row], starts[row + 1])
            buckets = np.zeros(law.buckets, np.int64)
            buckets[words[part] - row * law.buckets] = received.counts[part]
            own += buckets[law.buckets_of(row, items)]
        return own.astype(np.float64), received.messages


def bits_variance(law: CountMeanSketchLaw, contributors: float) -> float:
    """Return the variance that reversed bits add to an item's count."""
    reversed_ = float(law.bits.flips.probability)
    noise = contributors * reversed_ * (1 - reversed_) / (1 - 2 * reversed_) ** 2
    return noise * law.buckets / (law.buckets - 1)


def shared_variance(law: CountMeanSketchLaw, others: float, squares: float) -> float:
    """Return the variance due to other items.

    `others` is the number of their users, and `squares` the sum of their squared counts.
    """
    return others / law.buckets + squares / (law.rows * law.buckets)
