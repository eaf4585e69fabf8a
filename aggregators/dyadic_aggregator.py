"""What aggregators of reports on dyadic intervals have in common: from counts to estimates.

A protocol says how its reports are counted, and what the counts of some intervals say of them. How
intervals are put together, online and looking back, is the same for all.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.estimate import GAP, Estimate
from dpstream.aggregators.increments import Increment
from dpstream.aggregators.prefix_combiner import PrefixCombiner, Prefixes
from dpstream.aggregators.smoothed_estimates import SmoothedEstimates, smoothed_estimates
from dpstream.aggregators.tree_smoothing import TreeEstimates
from dpstream.randomizers.future_rand import FutureRandLaw

Estimator: TypeAlias = Literal["tree", "prefix"]
"""How intervals are put together: all complete ones combined, or the fewest added up."""


class IntervalAggregator(ABC):
    """Estimates from counts by interval, which are the business of the protocol.

    Args:
        counts: how many counts are estimated at once.
        estimator: "tree" combines all complete intervals, "prefix" adds up the fewest.
    """

    def __init__(self, counts: int, estimator: Estimator) -> None:
        self._combine = estimator == "tree"
        self._prefixes = Prefixes(self._own_of_all, counts, combine=self._combine)

    @abstractmethod
    def own_increments(self, epoch: int, attendance: Attendance) -> list[Increment | None]:
        """What the reports of every interval complete at an epoch say of it, by order."""

    def _own_of_all(
        self, epochs: range, attendance: Attendance
    ) -> Iterable[Sequence[Increment | None]]:
        """`own_increments` of each of some epochs."""
        return (self.own_increments(epoch, attendance) for epoch in epochs)

    @abstractmethod
    def _own_order(self, order: int, last_epoch: int, attendance: Attendance) -> TreeEstimates:
        """What the reports of every interval of an order say of it."""

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


class DyadicAggregator(IntervalAggregator):
    """Of a protocol in which each device draws an order, and reports signs.

    Args:
        orders: the law by which devices draw an order and their signs.
        counts: as for `IntervalAggregator`.
        estimator: the same.
        share: of the devices that run this law, where each draws one of several.
    """

    def __init__(
        self, orders: FutureRandLaw, counts: int, estimator: Estimator, share: float = 1.0
    ) -> None:
        super().__init__(counts, estimator)
        self._orders = orders
        self._share = share

    # Worked out when an estimate is made: where reports are only counted, nobody asks.
    @cached_property
    def _c_gaps(self) -> NDArray[np.float64]:
        return np.array(self._orders.c_gaps)

    @cached_property
    def _order_probabilities(self) -> NDArray[np.float64]:
        return self._share * np.array(self._orders.order_probabilities)


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
