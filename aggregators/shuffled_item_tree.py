"""A shuffled tree of items over time, server side.

Of every interval, the messages about an item that users came to, less those about it as one that
they left, both less dummies and collisions, estimate how its count changed. Intervals are put
together as for any dyadic tree (`aggregators.dyadic_aggregator`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.dyadic_aggregator import IntervalAggregator
from aggregators.estimate import GAP
from aggregators.increments import Increment
from aggregators.item_estimates import ItemEstimates
from aggregators.item_words import collisions_variance, counts_of_kind, dummies_variance
from aggregators.level_estimates import LevelEstimates
from aggregators.prefix_combiner import PrefixCombiner
from aggregators.tree_smoothing import TreeEstimates, prefix_variances
from aggregators.word_aggregator import WordAggregator
from randomizers.dyadic import orders_due
from randomizers.shuffled_item_tree import ShuffledItemTreeLaw


class ShuffledItemTreeAggregator(WordAggregator[ShuffledItemTreeLaw], IntervalAggregator):
    """Counts of words, and how many users have each item.

    Args:
        law: the constants of the job.
    """

    def __init__(self, law: ShuffledItemTreeLaw) -> None:
        WordAggregator.__init__(self, law)
        IntervalAggregator.__init__(self, law.size, "tree")

    def _words(self, epoch: int) -> int:
        """Of the intervals that end at the epoch."""
        return self.law.orders_due(epoch) * self.law.kinds * self.law.hashes.words

    def _changed(self, epoch: int) -> None:
        self._prefixes.changed(epoch)

    def estimate(self, epoch: int, attendance: Attendance) -> ItemEstimates:
        """How many users have each item at an epoch, from the messages up to it.

        Intervals whose window was withheld are taken as 0, widen all items' intervals and are
        flagged `GAP`, until a longer one covers them.

        Args:
            epoch: 1 to the last one.
            attendance: head counts of the epochs up to this one.
        """
        prefix = self._prefixes.at(epoch, attendance)
        total, population = prefix.total(), int(attendance.population[epoch])
        return ItemEstimates(
            values=total.value,
            standard_deviation=math.sqrt(total.variance),
            half_width=prefix.half_width(population),
            reports=total.reports,
            population=population,
            flags=(GAP,) if total.gaps else (),
        )

    def own_increments(self, epoch: int, attendance: Attendance) -> list[Increment | None]:
        """What the messages of every interval complete at an epoch say of it, by order."""
        reports = np.array([self._received.of(epoch).messages])
        increments: list[Increment | None] = []
        for order in range(orders_due(epoch)):
            own = self._own(order, np.array([epoch]), attendance)
            # Those of an epoch are counted once.
            increments += own.increments(reports if order == 0 else np.zeros(1, np.int64))
        return increments

    def _own_order(self, order: int, last_epoch: int, attendance: Attendance) -> TreeEstimates:
        ends = np.arange(1, (last_epoch >> order) + 1) << order
        return self._own(order, ends, attendance)

    def _own(self, order: int, ends: NDArray[np.int64], attendance: Attendance) -> TreeEstimates:
        """Intervals of an order; of one that is left out, or was withheld, nothing is known."""
        law = self.law
        values, estimated = np.zeros((len(ends), law.size)), np.zeros(len(ends))
        variances = np.full(len(ends), np.inf)
        for index, end in enumerate(ends.tolist()):
            contributors = int(attendance.contributors[end])
            if order >= law.orders or contributors < law.noise.minimum:
                continue
            population = int(attendance.population[end])
            scale = population / contributors
            mean, spread = law.noise.moments(contributors)
            variances[index] = scale**2 * law.kinds * dummies_variance(law.hashes, spread)
            estimated[index] = variances[index]
            silent = max(0, population - contributors) / max(1, population - 1)
            for kind in range(law.kinds):
                counts, real = counts_of_kind(
                    self._received.of(end), order * law.kinds + kind, law.hashes, law.size, mean
                )
                values[index] += (1 - 2 * kind) * scale * counts
                messages = max(0.0, real)
                collisions = collisions_variance(law.hashes, law.size, messages)
                sampling = messages / law.size * silent
                estimated[index] += scale**2 * (collisions + sampling)
        return TreeEstimates(values, variances, estimated)


class ShuffledNumberTreeAggregator(ShuffledItemTreeAggregator):
    """The same of numbers, which have ranges and quantiles."""

    def estimate(self, epoch: int, attendance: Attendance) -> LevelEstimates:
        """How many users have each number, and how many lie in any range."""
        return LevelEstimates.of_values(super().estimate(epoch, attendance))


def expected_variances(
    law: ShuffledItemTreeLaw, last_epoch: int, users: int
) -> list[TreeEstimates]:
    """By order, the variances of an item's change over every interval; the values are 0.

    Everybody is taken to have an item from the first epoch on, and to change as often as is
    followed, at any epochs: messages about other items are part of the error.
    """
    one = law.kinds * dummies_variance(law.hashes, law.noise.moments(users)[1])
    found = []
    for order in range(last_epoch.bit_length()):
        intervals = last_epoch >> order
        changing = min(1.0, (law.changes - 1) * (1 << order) / last_epoch)
        messages = np.full(intervals, law.kinds * users * changing)
        messages[0] = users
        collisions = collisions_variance(law.hashes, law.size, 1) * messages
        variances = np.full(intervals, one if order < law.orders else math.inf)
        found.append(TreeEstimates(np.zeros((intervals, 1)), variances, variances + collisions))
    return found


def predicted_deviations(
    law: ShuffledItemTreeLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """To expect of every item when everybody reports: in users, shape (last_epoch,)."""
    nobody = [
        own.increments(np.zeros(len(own.variances), np.int64))
        for own in expected_variances(law, last_epoch, users)
    ]
    combiner, predicted = PrefixCombiner(1), []
    for epoch in range(1, last_epoch + 1):
        due = range(orders_due(epoch))
        combiner.add_epoch([nobody[order][(epoch >> order) - 1] for order in due])
        predicted.append(combiner.total().variance)
    return np.sqrt(predicted)


def predicted_smoothed_deviations(
    law: ShuffledItemTreeLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """As `predicted_deviations`, of the estimates smoothed over the epochs 1 to the last."""
    own = expected_variances(law, last_epoch, users)
    variances, _ = prefix_variances(
        [order.variances for order in own],
        [order.variances if order.estimated is None else order.estimated for order in own],
    )
    return np.sqrt(variances)
