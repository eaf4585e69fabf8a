"""Estimate values in a range, or points in a box, from the cells of a shuffled window.

Cells are converted to values one axis at a time. If all cells have the same noise, this gives the
least-squares estimate from all combinations of cells: the solution for a tensor product is the
tensor product of the solutions for its factors. The variance of a box is the product of the
variances of its ranges. This assumes one item per user, since a node counts a user only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import Counts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.quantiles import quantile
from dpstream.aggregators.range_estimates import Quantile
from dpstream.aggregators.tree_counts import kept_node_values, level_values
from dpstream.randomizers.cell_codes.grid import AxisCode, Grid
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.code_variances import range_variances


@dataclass(frozen=True, slots=True, eq=False)
class GridCounts(Counts):
    """Number of users with each value or point; errors are correlated, but known for every box.

    >>> kept = Levels(4, (2, 2))
    >>> cells = np.array([100, 40, 60, 10, 30, 60, 0]) + 50
    >>> counts = GridCounts.from_cells(kept, cells, 50.0, 50.0, contributors=100)
    >>> found = counts.range(1, 3)
    >>> round(found.value, 1), round(found.standard_error, 1)
    (90.0, 7.6)

    Attributes:
        values: float64, in the shape of the grid; some can be negative.
        noise_variance: Noise variance of a cell.
    """

    axes: tuple[AxisCode, ...]
    values: NDArray[np.float64]
    noise_variance: float
    reports: int
    population: int
    flags: tuple[str, ...] = ()

    @classmethod
    def from_cells(
        cls,
        code: AxisCode | Grid,
        cells: NDArray[np.int64] | NDArray[np.float64],
        noise_mean: float,
        noise_variance: float,
        contributors: int,
        population: int | None = None,
        flags: tuple[str, ...] = (),
    ) -> Self:
        """Estimate the counts of a window.

        Args:
            code: Encoding of the items.
            cells: Number of messages received per cell, shape (code.cells,).
            noise_mean: Mean number of dummies in a cell, from all contributors.
            noise_variance: Variance of the number of dummies in a cell.
            contributors: Number of users who sent the messages, at least 1.
            population: Number of users to estimate; None for the contributors.
            flags: Warnings about the estimates.
        """
        if cells.shape != (code.cells,):
            raise ValueError(f"counts have shape {cells.shape}; expected ({code.cells},)")
        if contributors < 1:
            raise ValueError("the window has no contributors and cannot be estimated")
        axes = code.axes if isinstance(code, Grid) else (code,)
        people = contributors if population is None else population
        scale = people / contributors
        values = scale * (cells.astype(np.float64) - noise_mean)
        values = values.reshape([axis.cells for axis in axes])
        for number, axis in enumerate(axes):
            values = np.moveaxis(_along_first(axis, np.moveaxis(values, number, 0)), 0, number)
        return cls(axes, values, scale**2 * noise_variance, contributors, people, flags)

    def box(self, starts: Sequence[int], ends: Sequence[int]) -> Estimate:
        if not len(starts) == len(ends) == len(self.axes):
            raise ValueError(
                f"a box requires one start and one end for each of the axes ({len(self.axes)})"
            )
        factors = [self.noise_variance]
        for axis, start, end in zip(self.axes, starts, ends, strict=True):
            if not 0 <= start < end <= axis.size:
                raise ValueError(f"range [{start}, {end}) is empty or not in [0, {axis.size})")
            factors.append(float(range_variances(axis, start, end)))
        where = tuple(slice(start, end) for start, end in zip(starts, ends, strict=True))
        deviation = math.sqrt(math.prod(factors))
        width = NORMAL_95 * deviation
        return Estimate.around(float(self.values[where].sum()), deviation, width, *self.about)

    def range(self, start: int, end: int) -> Estimate:
        return self.box([start], [end])

    def quantile(self, share: float) -> Quantile:
        estimate = quantile(self, share)
        return Quantile(estimate.value, estimate.ci95_low, estimate.ci95_high + 1)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        for item in range(1, self.values.size + 1) if items is None else items:
            starts = [int(each) for each in np.unravel_index(item - 1, self.values.shape)]
            yield item, self.box(starts, [each + 1 for each in starts])

    def top(self, count: int) -> HeavyHitters:
        return self._leaves.top(count)

    def listed(self, most: int | None = None) -> ItemEstimates | None:
        return None if most is not None and self.values.size > most else self._leaves

    @property
    def tree(self) -> GridCounts:
        return self

    @property
    def method(self) -> str:
        if len(self.axes) == 1:
            return _method(self.axes[0])
        return f"along each axis: {'; '.join(map(_method, dict.fromkeys(self.axes)))}"

    @property
    def _leaves(self) -> ItemEstimates:
        """Counts of all values, each with the largest standard error among them."""
        deviation = self.largest_value_deviation
        values, half_width = self.values.reshape(-1), NORMAL_95 * deviation
        return ItemEstimates(values, deviation, half_width, *self.about)

    def cumulative(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return cumulative counts along the only axis, and their standard errors.

        Both are float64, shape (size + 1,); index t covers the values 0 to t - 1.
        """
        ends = np.arange(self.only_axis.size + 1)
        variances = self.noise_variance * range_variances(self.only_axis, 0, ends)
        return np.insert(np.cumsum(self.values), 0, 0.0), np.sqrt(variances)

    @property
    def largest_value_deviation(self) -> float:
        factors = [self.noise_variance]
        for axis in self.axes:
            starts = np.arange(axis.size)
            factors.append(float(range_variances(axis, starts, starts + 1).max()))
        return math.sqrt(math.prod(factors))

    @property
    def only_axis(self) -> AxisCode:
        if len(self.axes) != 1:
            raise ValueError(
                f"points with {len(self.axes)} coordinates have no order: query a box instead"
            )
        return self.axes[0]


def _along_first(axis: AxisCode, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    return level_values(axis, cells) if isinstance(axis, Levels) else kept_node_values(axis, cells)


def _method(axis: AxisCode) -> str:
    if isinstance(axis, Levels):
        return f"least squares on a tree that branches {' x '.join(map(str, axis.branching))}"
    return "sums of left children in a binary tree"
