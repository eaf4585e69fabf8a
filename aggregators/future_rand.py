"""FutureRand, server side: signs per dyadic interval, and how many devices have the value 1.

Algorithm 2 of "Randomize the Future", with each interval scaled by the devices enrolled over the
reports received for it, so that missing reports do not bias (as long as silence does not depend on
values) and devices may be enrolled at any epoch; and, by default, with each interval combined from
its own reports and those of all the intervals in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.dyadic_tree import DyadicTree
from dpstream.aggregators.estimate import GAP, Attendance, Estimate
from dpstream.aggregators.increments import Increment
from dpstream.aggregators.interval_scales import interval_scales
from dpstream.aggregators.law_aggregator import LawAggregator, check_form
from dpstream.aggregators.prefix_combiner import PrefixCombiner, Prefixes
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates, smoothed_estimates
from dpstream.aggregators.tree_smoothing import TreeEstimates
from dpstream.randomizers.dyadic import FutureRandLaw, orders_due
from dpstream.randomizers.future_rand import NEWCOMER
from dpstream.randomizers.tree_variances import combined_variances, smoothed_variances

Estimator: TypeAlias = Literal["tree", "prefix"]
"""How intervals are put together: all complete ones combined, or the fewest added up."""

FEW_REPORTS = 30
"""Below this many reports the variance is bounded instead of estimated."""

# Words counted at a time: np.bincount makes 8-byte integers of its whole input.
_COUNTED_AT_ONCE = 1 << 16


class FutureRandAggregator(LawAggregator[FutureRandLaw]):
    """Counts of reports; equal whatever the order, and however they were split and merged.

    The cells of a node are its negative and positive signs, then those of newcomers.

    >>> from dpstream.randomizers.future_rand.calibration import calibrate
    >>> from dpstream.randomizers.future_rand import FutureRandParameters
    >>> law = calibrate(FutureRandParameters(epsilon=1.0, changes=1), last_epoch=2)
    >>> aggregator = FutureRandAggregator(law)
    >>> aggregator.add(1, np.array([[1], [0], [1]], np.uint8), None)
    >>> aggregator.tree.node(order=0, index=1)
    array([1, 2, 0, 0])

    Args:
        law: the constants of the job.
        estimator: "tree" combines all complete intervals, "prefix" adds up the fewest.
    """

    def __init__(self, law: FutureRandLaw, estimator: Estimator = "tree") -> None:
        super().__init__(law)
        self._combine = estimator == "tree"
        self._prefixes = Prefixes(self._own_of_all, 1, combine=self._combine)
        self.tree = DyadicTree(law.horizon, cells=4)

    def check_words(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        """See that words can be reports of an epoch.

        Raises:
            ValueError: the epoch lies outside the horizon, the array is not uint8 of shape
                (reports, 1), or a word names an order that has no interval ending at the epoch.
        """
        check_form(epoch, self.law.horizon, words, np.uint8)
        due = orders_due(epoch)
        orders = (words & (NEWCOMER - 1)) >> 1
        # Before the first interval of an order nobody was enrolled.
        later = np.array([epoch >> order > 1 for order in range(due)])
        wrong = orders >= due
        wrong |= (words >= NEWCOMER) & ~later[np.minimum(orders, due - 1)]
        if wrong.any():
            raise ValueError(
                f"word {words[wrong][0]} at epoch {epoch}, where the words due are 0 to "
                f"{2 * due - 1}, and {NEWCOMER} more for newcomers after the first interval"
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
        """The counts; equal counts have equal bytes."""
        return self.tree.to_bytes()

    @classmethod
    def from_bytes(cls, law: FutureRandLaw, data: bytes, estimator: Estimator = "tree") -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no counts of this horizon.
        """
        aggregator = cls(law, estimator)
        aggregator.tree = DyadicTree.from_bytes(law.horizon, 4, data)
        return aggregator

    def estimate(self, epoch: int, attendance: Attendance) -> Estimate:
        """How many devices have the value 1 at an epoch, from the reports up to it.

        The epochs 1 to `epoch` are made up of dyadic intervals, whose estimated partial sums are
        added (Algorithm 2); each is combined from its own reports and those of the intervals in it
        (`PrefixCombiner`). What no report covers is taken as 0, widens the interval and is flagged
        `GAP`.

        Args:
            epoch: 1 to the horizon.
            attendance: head counts of the epochs up to this one.
        """
        return prefix_estimate(
            self._prefixes.at(epoch, attendance), int(attendance.population[epoch])
        )

    def state_after(self, epoch: int, attendance: Attendance) -> dict[str, Any]:
        """What the estimates of later epochs need of the reports up to an epoch.

        Args:
            epoch: 1 to the horizon.
            attendance: head counts of the epochs up to this one.
        """
        return self._prefixes.at(epoch, attendance).to_json()

    def resume(self, state: Mapping[str, Any], attendance: Attendance) -> None:
        """Have `state_after` in place of the reports up to its epoch; called of an empty state.

        Args:
            state: of the same law.
            attendance: head counts, at least of the epochs in which intervals of later ones begin.

        Raises:
            ValueError: it is no such state.
        """
        self._prefixes.resume(state, attendance)

    def smoothed(self, last_epoch: int, attendance: Attendance) -> SmoothedEstimates:
        """What is estimated, at every epoch, from all reports up to the last one.

        Args:
            last_epoch: 1 to the horizon.
            attendance: head counts of the epochs up to this one.
        """
        return smoothed_estimates(
            [
                self._own_order(order, last_epoch, attendance)
                for order in range(last_epoch.bit_length())
            ],
            attendance.population[1 : last_epoch + 1],
            combine=self._combine,
        )

    def own_increments(self, epoch: int, attendance: Attendance) -> list[Increment | None]:
        """What the reports of every interval complete at an epoch say of it, by order."""
        (increments,) = self._own_of_all(range(epoch, epoch + 1), attendance)
        return increments

    def _own_of_all(
        self, epochs: range, attendance: Attendance
    ) -> Iterator[list[Increment | None]]:
        """`own_increments` of each of some epochs."""
        due = [orders_due(epoch) for epoch in epochs]
        counts = np.concatenate([self.tree.nodes_due(epoch) for epoch in epochs])
        orders = np.concatenate([np.arange(each) for each in due])
        own = self._own(orders, np.repeat(epochs, due), counts, attendance)
        increments = iter(own.increments(reports=counts.sum(axis=1)))
        return (list(islice(increments, each)) for each in due)

    def _own_order(self, order: int, last_epoch: int, attendance: Attendance) -> TreeEstimates:
        """What the reports of every interval of an order say of it."""
        counts = self.tree.order_counts(order, last_epoch)
        ends = np.arange(1, len(counts) + 1) << order
        return self._own(np.full(len(counts), order), ends, counts, attendance)

    # Worked out when an estimate is made: where reports are only counted, nobody asks.
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
        attendance: Attendance,
    ) -> TreeEstimates:
        """The mean of the signs is c_gap times the mean partial sum."""
        c_gaps, probabilities = self._c_gaps[orders], self._order_probabilities[orders]
        signs, received = counts[:, 1::2] - counts[:, ::2], counts[:, 1::2] + counts[:, ::2]
        begins = ends - (1 << orders)
        scales = interval_scales(begins, ends, c_gaps, probabilities, attendance, received)
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
    """How many devices have the value 1, from the increments of all epochs so far.

    What no report covers is taken as 0, widens the interval and is flagged `GAP`.

    Args:
        prefix: of a single count.
        population: how many devices are enrolled.
    """
    total = prefix.total()
    value, half_width = float(total.value[0]), prefix.half_width(population)
    flags = (GAP,) if total.gaps else ()
    deviation = math.sqrt(total.variance)
    return Estimate.around(value, deviation, half_width, total.reports, population, flags)


def variances_of_means(
    means: NDArray[np.float64], c_gaps: NDArray[np.float64], received: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Variances of means of signs: estimated, or bounded where the reports are few.

    The expectation of a sign is at most c_gap, so a mean beyond it is no reason to believe in a
    smaller variance.
    """
    estimated = (1 - np.minimum(np.abs(means), c_gaps) ** 2) / np.maximum(received - 1, 1)
    return np.where(received < FEW_REPORTS, 1 / received, estimated)


def interval_variances(law: FutureRandLaw) -> list[float]:
    """Variance of an interval's own estimate, by order, for one user: 1 / (c_gap^2 p).

    p is the probability of the order. It is infinite for orders that are never drawn, and an upper
    bound otherwise: what the values themselves take from it is left out.
    """
    return [
        1 / (c_gap**2 * probability) if probability else math.inf
        for c_gap, probability in zip(law.c_gaps, law.order_probabilities, strict=True)
    ]


def predicted_variances(
    law: FutureRandLaw, last_epoch: int, estimator: Estimator = "tree"
) -> NDArray[np.float64]:
    """The variances to expect of the estimates when everybody reports; before any data.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's horizon.
        estimator: of `FutureRandAggregator`.

    Returns:
        for one user, shape (last_epoch,): multiply by the number of users.
    """
    variances = interval_variances(law)
    if estimator == "tree":
        variances = combined_variances(variances)
    epochs = np.arange(1, last_epoch + 1)
    predicted = np.zeros(last_epoch)
    for order, variance in enumerate(variances[: last_epoch.bit_length()]):
        predicted[epochs >> order & 1 == 1] += variance
    return predicted


def predicted_smoothed_variances(law: FutureRandLaw, last_epoch: int) -> NDArray[np.float64]:
    """As `predicted_variances`, of the estimates smoothed over the epochs 1 to the last."""
    variances = interval_variances(law)[: last_epoch.bit_length()]
    return smoothed_variances(variances, last_epoch, np.arange(1, last_epoch + 1))
