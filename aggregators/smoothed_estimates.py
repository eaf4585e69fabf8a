"""Smooth a whole horizon: estimate every epoch from the reports of all epochs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.random_walk import Shrunk, random_walk
from dpstream.aggregators.shrinkage import offline_shrunk, online_shrunk
from dpstream.aggregators.tree_smoothing import (
    TreeEstimates,
    smoothed,
)


@dataclass(frozen=True, slots=True, eq=False)
class SmoothedEstimates:
    """Estimates of one count (a Boolean) or of several (items) for all epochs up to the last.

    Attributes:
        values: float64, shape (epochs, counts), in users; unbiased and consistent: increments of
            single epochs sum to the increment of any longer interval.
        standard_errors, half_widths: Shape (epochs,): the same for every value of an epoch; the
            half-width is that of the 95 % interval.
        gaps: bool, shape (epochs,): True if the estimate depends on epochs that no report
            separates, so that no coverage is claimed.
        population: int64, shape (epochs,): number of users the values describe.
        online_shrunk, shrunk: Shape (epochs, counts): biased estimates, from reports up to each
            epoch, and from all reports.
        level_variances: Shape (levels, epochs): as in `RangeEstimates`, for buckets only.
    """

    values: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    half_widths: NDArray[np.float64]
    gaps: NDArray[np.bool_]
    population: NDArray[np.int64]
    online_shrunk: NDArray[np.float64] | None = None
    shrunk: NDArray[np.float64] | None = None
    level_variances: NDArray[np.float64] | None = None

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Values and ends of their 95 % intervals, shape (3, epochs, counts)."""
        width = self.half_widths[:, None]
        return np.stack([self.values, self.values - width, self.values + width])

    def count_at(self, index: int, reports: int) -> Estimate:
        return Estimate.around(float(self.values[index, 0]), *self._about(index, reports))

    def items_at(self, index: int, reports: int) -> ItemEstimates:
        return ItemEstimates(self.values[index], *self._about(index, reports))

    def _about(self, index: int, reports: int) -> tuple[float, float, int, int, tuple[str, ...]]:
        deviation, width = float(self.standard_errors[index]), float(self.half_widths[index])
        flags = (GAP,) if self.gaps[index] else ()
        return deviation, width, reports, int(self.population[index]), flags

    @property
    def clipped(self) -> NDArray[np.float64]:
        return clipped(self.intervals, self.population)


def smoothed_estimates(
    orders: Sequence[TreeEstimates], population: NDArray[np.int64], *, combine: bool = True
) -> SmoothedEstimates:
    """Estimate all epochs of a horizon so far, given own estimates of its intervals.

    If no report separates several epochs, their increments are taken as 0, or as equal if their sum
    is known. Confidence intervals of prefixes that end there are wider by 1.96 times the root mean
    square of the known increments of single epochs, or times the population if none is known.

    Args:
        orders: Own estimates, as for `dpstream.aggregators.tree_smoothing.smoothed`.
        population: Shape (epochs,): devices enrolled.
        combine: True if the online estimates combine intervals with their halves.
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
        standard_errors=deviations,
        half_widths=NORMAL_95 * (deviations + widening),
        gaps=prefixes.unknown > 0,
        population=population,
        online_shrunk=online_shrunk(orders, combine=combine),
        shrunk=offline_shrunk(orders),
    )


def smoothed_samples(
    found: Sequence[Estimate | ItemEstimates | None],
    population: NDArray[np.int64],
    counts: int,
    response_variance: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> SmoothedEstimates:
    """Add biased estimates, from a random walk model, to those from one sample per epoch.

    The unbiased values stay as published. The model's intervals are not published: they hold on
    average over epochs, but rarely where a count jumps.

    Args:
        found: Unbiased estimates of the epochs from 1; None without reports.
        population: Number of users enrolled, shape (epochs,).
        counts: Number of estimates per epoch.
        response_variance: Function from shares of users to the variance of one report's estimate
            of the share, apart from sampling; both of shape (epochs, counts).
    """
    values, standard_errors = np.zeros((len(found), counts)), population.astype(np.float64)
    reports = np.zeros(len(found), np.int64)
    for at, estimate in enumerate(found):
        # Without reports, any count up to the population is possible.
        if estimate is not None and estimate.standard_error is not None:
            values[at], reports[at] = estimate.intervals[0], estimate.reports
            standard_errors[at] = estimate.standard_error
    known = reports > 0
    users, asked = np.maximum(population, 1)[:, None], np.where(known, reports, 0)[:, None]
    weighted = np.where(known[:, None], values, 0.0) / users * asked
    # The noise of an epoch follows from the share over many epochs; its own share is too noisy.
    so_far = weighted.cumsum(axis=0) / np.maximum(asked.cumsum(axis=0), 1)
    overall = np.broadcast_to(so_far[-1:], so_far.shape)

    def shrunk_with(shares: NDArray[np.float64]) -> list[Shrunk]:
        shares = np.clip(shares, 0.0, 1.0)
        absent = np.maximum(1 - asked / users, 0.0)
        of_report = response_variance(shares) + absent * shares * (1 - shares)
        variances = np.where(known[:, None], users**2 * of_report / np.maximum(asked, 1), np.inf)
        largest = float(users.max()) ** 2
        return [
            random_walk(count, variance, largest, boost=0.0, decay=0.0)
            for count, variance in zip(values.T, variances.T, strict=True)
        ]

    return SmoothedEstimates(
        values=values,
        standard_errors=standard_errors,
        half_widths=NORMAL_95 * standard_errors,
        gaps=~known,
        population=population,
        online_shrunk=np.stack([each.online for each in shrunk_with(so_far)], axis=1),
        shrunk=np.stack([each.offline for each in shrunk_with(overall)], axis=1),
    )


def clipped(values: NDArray[np.float64], population: NDArray[np.int64]) -> NDArray[np.float64]:
    """Clip estimates, shape (..., epochs, counts), to 0 and the population; this adds a bias."""
    return np.clip(values, 0.0, population[:, None])
