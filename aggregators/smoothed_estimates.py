"""A whole horizon looked back at: every epoch estimated from the reports of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.shrinkage import offline_shrunk, online_shrunk
from dpstream.aggregators.tree_smoothing import (
    TreeEstimates,
    smoothed,
)


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedEstimates:
    """Estimates for the epochs 1 to the last, of one count (a Boolean) or of several (items).

    Attributes:
        values: float64, shape (epochs, counts), in users: unbiased, and consistent: increments of
            single epochs add up to those of all longer intervals.
        standard_deviations: shape (epochs,): of the noise of every value of an epoch.
        half_widths: shape (epochs,): of the 95 % intervals around the values.
        gaps: bool, shape (epochs,): no report tells some epochs apart, and no coverage is claimed.
        population: int64, shape (epochs,): how many users an epoch is about.
        online_shrunk: shape (epochs, counts): biased, from the reports up to each epoch; None where
            they are not made.
        shrunk: shape (epochs, counts): biased, from all reports; likewise.
        level_variances: shape (levels, epochs), of buckets only: as of `RangeEstimates`.
    """

    values: NDArray[np.float64]
    standard_deviations: NDArray[np.float64]
    half_widths: NDArray[np.float64]
    gaps: NDArray[np.bool_]
    population: NDArray[np.int64]
    online_shrunk: NDArray[np.float64] | None = None
    shrunk: NDArray[np.float64] | None = None
    level_variances: NDArray[np.float64] | None = None

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Values, lows and highs, shape (3, epochs, counts)."""
        width = self.half_widths[:, None]
        return np.stack([self.values, self.values - width, self.values + width])

    def count_at(self, index: int, reports: int) -> Estimate:
        """The one count of an epoch as it is published of one online.

        Args:
            index: of the epoch in the arrays.
            reports: how many were received, of all epochs.
        """
        return Estimate.around(float(self.values[index, 0]), *self._about(index, reports))

    def items_at(self, index: int, reports: int) -> ItemEstimates:
        """The counts of an epoch, likewise."""
        return ItemEstimates(self.values[index], *self._about(index, reports))

    def _about(self, index: int, reports: int) -> tuple[float, float, int, int, tuple[str, ...]]:
        deviation, width = float(self.standard_deviations[index]), float(self.half_widths[index])
        flags = (GAP,) if self.gaps[index] else ()
        return deviation, width, reports, int(self.population[index]), flags

    @property
    def clipped(self) -> NDArray[np.float64]:
        """Biased: values, lows and highs moved into 0 to the population, as `intervals`."""
        return clipped(self.intervals, self.population)


def smoothed_estimates(
    orders: Sequence[TreeEstimates], population: NDArray[np.int64], *, combine: bool = True
) -> SmoothedEstimates:
    """Everything that can be said of the epochs of a horizon so far.

    Where no report tells epochs apart their increments are taken as 0, or as alike if their sum is
    known, and the intervals of prefixes that end there are 1.96 times the root mean square of the
    known increments of single epochs wider; of the population, if there are none.

    Args:
        orders: own estimates of the intervals, as `dpstream.aggregators.tree_smoothing.smoothed`
            takes them.
        population: shape (epochs,): devices enrolled.
        combine: whether the online estimates combine intervals with their halves.
    """
    prefixes = smoothed(orders)
    deviations = np.sqrt(prefixes.variances)
    known = orders[0].values[np.isfinite(orders[0].variances)]
    typical = (
        np.full(len(population), math.sqrt(np.square(known).mean())) if known.size else population
    )
    widening = typical * np.sqrt(prefixes.unknown)
    return SmoothedEstimates(
        values=prefixes.values,
        standard_deviations=deviations,
        half_widths=NORMAL_95 * (deviations + widening),
        gaps=prefixes.unknown > 0,
        population=population,
        online_shrunk=online_shrunk(orders, combine=combine),
        shrunk=offline_shrunk(orders),
    )


def clipped(values: NDArray[np.float64], population: NDArray[np.int64]) -> NDArray[np.float64]:
    """Estimates moved into 0 to the population: nearer the truth, and biased.

    Args:
        values: shape (..., epochs, counts).
        population: shape (epochs,).
    """
    return np.clip(values, 0.0, population[:, None])
