"""Count FutureRand signs per dyadic interval and estimate how many devices have value 1.

Algorithm 2 of "Randomize the Future", with two additions:

* Each interval is scaled by the number of enrolled devices divided by the number of its reports.
  Missing reports cause no bias if absence does not depend on values. Devices can enroll later.
* By default, an interval's estimate combines its own reports with those of all intervals within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.dyadic_tree import DyadicTree
from dpstream.aggregators.estimate import GAP, Estimate, Participation
from dpstream.aggregators.increments import Increment
from dpstream.aggregators.law_aggregator import LawAggregator, check_format
from dpstream.aggregators.prefix_combiner import PrefixCombiner, Prefixes
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates, smoothed_estimates
from dpstream.aggregators.tree_smoothing import TreeEstimates
from dpstream.randomizers.dyadic import FutureRandLaw, orders_due
from dpstream.randomizers.future_rand import NEWCOMER
from dpstream.randomizers.tree_variances import combined_variances, smoothed_variances

Estimator: TypeAlias = Literal["tree", "prefix"]
"""Combination of intervals: all complete ones ("tree"), or the fewest that suffice ("prefix")."""

FEW_REPORTS = 30
"""Number of reports below which the variance is bounded instead of estimated."""

# np.bincount converts its whole input to 8-byte integers.
_COUNTED_AT_ONCE = 1 << 16


class FutureRandAggregator(LawAggregator[FutureRandLaw]):
    """Count reports; the state is independent of input order, splits and merges.

    The cells of a node count its negative and positive signs, then the same for newcomers.

    >>> from dpstream.randomizers.future_rand.calibration import calibrate
    >>> from dpstream.randomizers.future_rand import FutureRandParameters
    >>> law = calibrate(FutureRandParameters(epsilon=1.0, max_changes=1), last_epoch=2)
    >>> aggregator = FutureRandAggregator(law)
    >>> aggregator.add(1, np.array([[1], [0], [1]], np.uint8), None)
    >>> aggregator.tree.node(order=0, index=1)
    array([1, 2, 0, 0])
    """

    def __init__(self, law: FutureRandLaw, estimator: Estimator = "tree") -> None:
        super().__init__(law)
        self._combine = estimator == "tree"
        self._prefixes = Prefixes(self._own_of_all, 1, combine=self._combine)
        self.tree = DyadicTree(law.horizon, cells=4)

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        check_format(epoch, self.law.horizon, words, np.uint8)
        due = orders_due(epoch)
        orders = (words & (NEWCOMER - 1)) >> 1
        # Newcomers report only on intervals after the first one of an order.
        later = np.array([epoch >> order > 1 for order in range(due)])
        wrong = orders >= due
        wrong |= (words >= NEWCOMER) & ~later[np.minimum(orders, due - 1)]
        if wrong.any():
            raise ValueError(
                f"message at epoch {epoch} is {words[wrong][0]}; expected 0 to {2 * due - 1}, "
                f"plus {NEWCOMER} from a new device on an interval after the first"
            )

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        table = np.zeros(2 * NEWCOMER, np.int64)
        if counts is None:
            for start in range(0, len(words), _COUNTED_AT_ONCE):
                chunk = words[start : start + _COUNTED_AT_ONCE, 0]
                table += np.bincount(chunk, minlength=table.size)
        else:
            np.add.at(table, words[:, 0], counts.astype(np.int64))
        signs = table.reshape(2, -1, 2)[:, : orders_due(epoch)]
        self.tree.add(epoch, np.concatenate(signs, axis=1))
        self._prefixes.changed(epoch)

    def _merge(self, other: Self) -> None:
        self.tree.merge(other.tree)
        self._prefixes.changed(other.tree.first_epoch)

    def to_bytes(self) -> bytes:
        return self.tree.to_bytes()

    @classmethod
    def from_bytes(cls, law: FutureRandLaw, data: bytes, estimator: Estimator = "tree") -> Self:
        aggregator = cls(law, estimator)
        aggregator.tree = DyadicTree.from_bytes(law.horizon, 4, data)
        return aggregator

    def estimate(self, epoch: int, participation: Participation) -> Estimate:
        """Estimate the number of devices with value 1 from the reports up to an epoch.

        The epochs 1 to `epoch` consist of dyadic intervals, whose estimated partial sums are added
        (Algorithm 2). Intervals without reports count as 0, widen the confidence interval and set
        the flag `GAP`.
        """
        return prefix_estimate(
            self._prefixes.at(epoch, participation), int(participation.population[epoch])
        )

    def state_after(self, epoch: int, participation: Participation) -> dict[str, Any]:
        return self._prefixes.at(epoch, participation).to_json()

    def resume(self, state: Mapping[str, Any], participation: Participation) -> None:
        """Load a result of `state_after` into an empty aggregator.

        `participation` must cover the start of every interval that ends after the state's epoch.
        """
        self._prefixes.resume(state, participation)

    def smoothed(self, last_epoch: int, participation: Participation) -> SmoothedEstimates:
        return smoothed_estimates(
            [
                self._own_order(order, last_epoch, participation)
                for order in range(last_epoch.bit_length())
            ],
            participation.population[1 : last_epoch + 1],
            combine=self._combine,
        )

    def own_increments(self, epoch: int, participation: Participation) -> list[Increment | None]:
        """Estimate the intervals completed by an epoch, by order, each from its own reports."""
        (increments,) = self._own_of_all(range(epoch, epoch + 1), participation)
        return increments

    def _own_of_all(
        self, epochs: range, participation: Participation
    ) -> Iterator[list[Increment | None]]:
        due = [orders_due(epoch) for epoch in epochs]
        counts = np.concatenate([self.tree.nodes_due(epoch) for epoch in epochs])
        orders = np.concatenate([np.arange(each) for each in due])
        own = self._own(orders, np.repeat(epochs, due), counts, participation)
        increments = iter(own.increments(reports=counts.sum(axis=1)))
        return (list(islice(increments, each)) for each in due)

    def _own_order(
        self, order: int, last_epoch: int, participation: Participation
    ) -> TreeEstimates:
        counts = self.tree.order_counts(order, last_epoch)
        ends = np.arange(1, len(counts) + 1) << order
        return self._own(np.full(len(counts), order), ends, counts, participation)

    # Cached on first use: processes that only count reports never need it.
    @cached_property
    def _c_gaps(self) -> NDArray[np.float64]:
        return np.array(self.law.c_gaps)

    @cached_property
    def _order_probabilities(self) -> NDArray[np.float64]:
        return np.array(self.law.order_probabilities)

    def _own(
        self,
        orders: NDArray[np.int64],
        ends: NDArray[np.int64],
        counts: NDArray[np.int64],
        participation: Participation,
    ) -> TreeEstimates:
        """Estimate intervals from their own reports: mean sign = c_gap * mean partial sum."""
        c_gaps, probabilities = self._c_gaps[orders], self._order_probabilities[orders]
        signs, received = counts[:, 1::2] - counts[:, ::2], counts[:, 1::2] + counts[:, ::2]
        begins = ends - (1 << orders)
        scales = interval_scales(begins, ends, c_gaps, probabilities, participation, received)
        values = scales.scale * signs[:, 0] + scales.newcomer_scale * signs[:, 1]
        of_group = np.divide(
            np.where(scales.all_newcomers, signs[:, 1], signs[:, 0]),
            scales.received,
            out=np.zeros(len(ends)),
            where=scales.received > 0,
        )
        means = variances_of_means(of_group, c_gaps, np.maximum(scales.received, 1))
        return TreeEstimates(
            values=values[:, None],
            variances=scales.variances,
            estimated=np.square(scales.group / c_gaps) * means + scales.newcomer_variance,
        )


def prefix_estimate(prefix: PrefixCombiner, population: int) -> Estimate:
    total = prefix.total()
    value, half_width = float(total.value[0]), prefix.half_width(population)
    flags = (GAP,) if total.gaps else ()
    deviation = math.sqrt(total.variance)
    return Estimate.around(value, deviation, half_width, total.reports, population, flags)


def variances_of_means(
    means: NDArray[np.float64], c_gaps: NDArray[np.float64], received: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the variances of mean signs: estimated, or bounded if there are few reports.

    The expected sign is at most c_gap, so a larger observed mean does not show a smaller variance.
    """
    estimated = (1 - np.minimum(np.abs(means), c_gaps) ** 2) / np.maximum(received - 1, 1)
    return np.where(received < FEW_REPORTS, 1 / received, estimated)


def interval_variances(law: FutureRandLaw) -> list[float]:
    """Return, by order, the variance per user of an interval's own estimate: 1 / (c_gap^2 p).

    p is the probability of the order. The variance is infinite for orders that are never drawn.
    Otherwise it is an upper bound: it ignores the part that the values themselves explain.
    """
    return [
        1 / (c_gap**2 * probability) if probability else math.inf
        for c_gap, probability in zip(law.c_gaps, law.order_probabilities, strict=True)
    ]


def predicted_variances(
    law: FutureRandLaw, last_epoch: int, estimator: Estimator = "tree"
) -> NDArray[np.float64]:
    """Predict the variances per user if all devices report, shape (last_epoch,)."""
    variances = interval_variances(law)
    if estimator == "tree":
        variances = combined_variances(variances)
    epochs = np.arange(1, last_epoch + 1)
    predicted = np.zeros(last_epoch)
    for order, variance in enumerate(variances[: last_epoch.bit_length()]):
        predicted[epochs >> order & 1 == 1] += variance
    return predicted


def predicted_smoothed_variances(law: FutureRandLaw, last_epoch: int) -> NDArray[np.float64]:
    """Predict the variances per user of smoothed estimates if all devices report."""
    variances = interval_variances(law)[: last_epoch.bit_length()]
    return smoothed_variances(variances, last_epoch, np.arange(1, last_epoch + 1))


@dataclass(frozen=True, slots=True, eq=False)
class IntervalScales:
    """Scales from signs to users for several intervals; each array has shape (intervals,).

    A sum of signs times `scale` or `newcomer_scale` estimates the sum of a group's partial sums.
    Two groups of devices report with different probabilities, so each has its own scale:

    * Devices enrolled when the interval began. They report if they are present at both of its ends.
      Their scale is the number of these devices divided by the number of their reports.
    * Newcomers, enrolled within the interval. They report if they are present at its end. There can
      be few newcomers, so their scale is the inverse of the probability that a newcomer reports.

    The first interval of an order has one group: all its devices are newcomers.

    Attributes:
        group: Number of devices in the larger group.
        received: Number of reports of the larger group.
        scale: Scale of the larger group's signs, group / (c_gap * received); 0 without reports.
        newcomer_variance: Variance of the newcomers' sum.
        all_newcomers: True if the interval is not the first, but began without enrolled devices.
            Newcomers are then the larger group.
        known: True if the interval has reports, or no devices.
    """

    group: NDArray[np.float64]
    received: NDArray[np.int64]
    scale: NDArray[np.float64]
    newcomer_scale: NDArray[np.float64]
    newcomer_variance: NDArray[np.float64]
    all_newcomers: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @property
    def variances(self) -> NDArray[np.float64]:
        """Variances of the estimates, from the numbers of reports alone; infinite if unknown."""
        own = np.square(self.scale) * self.received + self.newcomer_variance
        variances: NDArray[np.float64] = np.where(self.known, own, np.inf)
        return variances


def interval_scales(
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    c_gaps: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    participation: Participation,
    received: NDArray[np.int64],
) -> IntervalScales:
    """Compute the scales of several intervals.

    Args:
        begins: Last epoch before each interval, shape (intervals,).
        ends: Last epoch of each interval, shape (intervals,).
        c_gaps: c_gap of each interval, or one value for all.
        probabilities: Probability that a device draws an interval's order, or one value for all.
        participation: Head counts for all epochs.
        received: Number of reports by other devices and by newcomers, shape (intervals, 2).
    """
    population = participation.population[ends].astype(np.float64)
    enrolled = np.where(begins > 0, participation.population[np.maximum(begins, 0)], 0.0)
    newcomers = np.maximum(population - enrolled, 0.0)
    # If no device was enrolled at the start, all are newcomers, or this is the first interval.
    alone = enrolled == 0
    first = begins <= 0
    group = np.where(alone, population, enrolled)
    signs = np.where(alone & ~first, received[:, 1], received[:, 0])
    scale = np.divide(group, c_gaps * signs, out=np.zeros(len(ends)), where=signs > 0)
    present = participation.contributors[ends] / np.maximum(population, 1.0)
    reporting = c_gaps * probabilities * np.where(alone, 0.0, present)
    newcomer_scale = np.divide(1.0, reporting, out=np.zeros(len(ends)), where=reporting > 0)
    return IntervalScales(
        group=group,
        received=signs,
        scale=scale,
        newcomer_scale=np.where(alone & ~first, scale, newcomer_scale),
        newcomer_variance=np.where(alone, 0.0, newcomers * newcomer_scale / c_gaps),
        all_newcomers=alone & ~first,
        known=(signs > 0) | (population == 0),
    )
