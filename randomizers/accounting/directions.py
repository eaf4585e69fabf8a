"""Cells that two neighbors shift in different directions, some up and others down.

In cells where two streams of a user differ, the message is in the first or in the second stream.
All cells have the same noise, so only the number of cells shifted up matters. Cells in which the
streams agree can be ignored: they do not depend on the stream and can be simulated, so fewer
shifted cells are never worse for privacy. That leaves the patterns with j cells up and n - j cells
down for j from 0 to n, which include their mirror images.

For a single cell, neither direction has the larger delta at every epsilon. So no argument about one
cell proves that shifting all cells up is the worst case. Instead, all j are checked. Consider the
patterns with at least a and at most b cells up. Each of the b - a cells in between is represented
by a dominating cell, which reveals no less than either direction. If a cells up, n - b cells down
and b - a dominating cells are private enough, so are all patterns from a to b. Otherwise the
interval is halved, down to a single j, which is computed directly.

At every epsilon, the delta of the dominating cell is the larger delta of the two directions. The
maximum of two convex functions of e^epsilon is convex, so some pair of distributions has these
deltas. A random map turns an outcome of this pair into one of either direction (Blackwell),
whatever else is observed. So the dominating cell can replace a cell shifted in either direction in
a composition (Zhu, Dong and Wang 2022, theorem 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import (
    CellNoise,
)
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Powers, on_grid
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    grid_width,
    shifted_losses,
)
from dpstream.randomizers.search import raised

# Maximum number of intervals to check before the noise is increased.
_MOST_INTERVALS = 64
# First relative increase of the noise.
_LEAST_STEP = 1e-4


class ShiftedEitherWay:
    """Cells with the same noise, each shifted up or down by one message.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> cells = ShiftedEitherWay(PoissonNoise(1155.0), 64)
    >>> [f"{cells.delta(ups, 1.0):.2e}" for ups in (64, 32, 0)]
    ['9.99e-07', '8.98e-07', '8.04e-07']
    >>> cells.private(1.0, 1e-6)
    True
    """

    def __init__(self, noise: CellNoise, cells: int) -> None:
        width = grid_width([ShiftedCells(noise, 1, cells)])
        up, down = (on_grid(shifted_losses(noise, shift), width) for shift in (1, -1))
        self.cells = cells
        self._kinds = [Powers(each, cells) for each in (up, down, dominating(up, down))]

    def delta(self, ups: int, epsilon: float) -> float:
        """Return the delta with `ups` cells shifted up and all other cells down."""
        return self._composed(ups, ups).delta(epsilon)

    def private(self, epsilon: float, delta: float) -> bool:
        """Return whether all patterns are proven private; a borderline case can return False."""
        return self._all(lambda whole: whole.delta(epsilon) <= delta)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for a delta, valid for all patterns; infinite if delta is too small."""
        return raised(
            lambda epsilon: epsilon == math.inf or self.private(epsilon, delta),
            self._composed(self.cells, self.cells).epsilon(delta),
            _LEAST_STEP,
            growth=2,
        )

    def _all(self, enough: Callable[[LossDistribution], bool]) -> bool:
        intervals = [(0, self.cells)]
        for _ in range(_MOST_INTERVALS):
            if not intervals:
                return True
            fewest, most = intervals.pop()
            if enough(self._composed(fewest, most)):
                continue
            if fewest == most:
                return False
            middle = (fewest + most) // 2
            intervals += [(fewest, middle), (middle + 1, most)]
        return not intervals

    def _composed(self, fewest: int, most: int) -> LossDistribution:
        whole: LossDistribution | None = None
        counts = (fewest, self.cells - most, most - fewest)
        for powers, count in zip(self._kinds, counts, strict=True):
            if count:
                part = powers.of(count)
                whole = part if whole is None else whole.composed_with(part)
        assert whole is not None
        return whole


def least_mean_either_way(
    epsilon: float,
    delta: float,
    noise_of: Callable[[float], CellNoise],
    cells: int,
    mean: float,
) -> float:
    """Return the least mean known to be private for every pattern of directions.

    `noise_of` returns the noise of a cell, given its mean. `mean` is the least mean that suffices
    if all cells are shifted in the same direction.
    """
    return raised(
        lambda mean: ShiftedEitherWay(noise_of(mean), cells).private(epsilon, delta),
        mean,
        _LEAST_STEP,
        growth=2,
    )


def dominating(one: LossDistribution, two: LossDistribution) -> LossDistribution:
    """Return a distribution that reveals no less than either of two loss distributions on a grid.

    The delta of the result is the larger of the two deltas. Its masses are determined by changes in
    the slope of delta. If one distribution has the larger delta at a grid point and at both of its
    neighbors, its mass is used. Otherwise, the excess of the other delta at a neighbor is added to
    the slope on that side.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> up, down = (on_grid(shifted_losses(PoissonNoise(9.0), each), 0.01) for each in (1, -1))
    >>> both = dominating(up, down)
    >>> more = [both.delta(each) - max(up.delta(each), down.delta(each)) for each in (-0.2, 0.3)]
    >>> max(more) < 1e-11, min(more) > 0
    (True, True)
    """
    width = one.width
    first, last = min(one.first, two.first) - 1, max(one.last, two.last) + 1
    masses, deltas = (
        np.array([of(each, first, last) for each in (one, two)]) for of in (_masses, _deltas)
    )
    points = np.arange(last - first + 1)
    larger = np.argmax(deltas, axis=0)
    error = rounding.of_sum(len(points) + 2) + 4 * rounding.FUNCTION
    found = masses[larger, points]
    for side, weight in ((1, 1.0), (-1, math.exp(width))):
        beside = points[1:-1] + side
        chosen = larger[points[1:-1]]
        more = deltas[1 - chosen, beside] - deltas[chosen, beside]
        more = np.where(more > 0, more + error * deltas.max(axis=0)[beside], 0.0)
        found[1:-1] += more * weight / math.expm1(width)
    return LossDistribution(
        width,
        first,
        found,
        max(one.certain, two.certain),
        max(one.slack, two.slack),
        one.rounding + two.rounding + error,
    )


def _masses(one: LossDistribution, first: int, last: int) -> NDArray[np.float64]:
    return np.pad(one.masses, (one.first - first, last - one.last))


def _deltas(one: LossDistribution, first: int, last: int) -> NDArray[np.float64]:
    """Return the deltas at all grid points, computed as sums of positive numbers."""
    masses = _masses(one, first, last)
    parts = -np.expm1(-one.width * np.arange(len(masses)))
    return one.certain + np.convolve(masses, parts[::-1])[len(masses) - 1 :]
