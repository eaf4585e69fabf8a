"""Cell counts of one window, or their sum over several, minus the mean of the noise.

They are scaled from present users to all users.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import CountedWindow, Counts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.grid_counts import GridCounts
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.prefix_search import heavy_items
from dpstream.aggregators.row_estimates import RowEstimates
from dpstream.randomizers.cell_codes.codes import CellCode
from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.count_min import Estimator
from dpstream.randomizers.item_domains import MOST_PUBLISHED


@dataclass(frozen=True, slots=True, eq=False)
class PrefixCounts(Counts):
    """Estimate single items, and search for the top items.

    Attributes:
        cells: float64, shape (code.cells,); counts minus the mean of the noise.
        noise_variance: Noise variance of each cell.
        held_variance: Upper bound on the variance that a cell's own users add to its count.
    """

    code: PrefixCells
    cells: NDArray[np.float64]
    noise_variance: float
    reports: int
    population: int
    flags: tuple[str, ...] = ()
    held_variance: float = 0.0

    @property
    def method(self) -> str:
        lengths = ", ".join(str(level.length) for level in self.code.levels)
        return f"a search through prefixes of {lengths} bits"

    @property
    def error_sample(self) -> NDArray[np.float64] | None:
        if self.code.levels[-1].direct:
            return None
        return np.asarray(self._last_level - np.median(self._last_level), np.float64)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        last, cells, errors = self.code.messages - 1, self._last_level, self.error_sample
        deviation, half_width = math.sqrt(self.noise_variance), 0.0
        usual = 0.0 if errors is None else float(np.median(cells))
        if errors is not None:
            half_width = float(np.quantile(np.abs(errors), 0.95))
            deviation = half_width / NORMAL_95
        if self.held_variance or not half_width:
            deviation = math.sqrt(deviation * deviation + self.held_variance)
            half_width = NORMAL_95 * deviation
        for item in range(1, (1 << self.code.bits) + 1) if items is None else items:
            cell = self.code.level_buckets(last, np.array([item - 1]))[0]
            value = float(cells[cell]) - usual
            yield item, Estimate.around(value, deviation, half_width, *self.about)

    def top(self, count: int) -> HeavyHitters:
        heaviest = heavy_items(
            self.code,
            self.cells,
            0.0,
            self.noise_variance,
            self.population,
            count,
            held_variance=self.held_variance,
        )
        return replace(heaviest, reports=self.reports)

    @property
    def _last_level(self) -> NDArray[np.float64]:
        return self.cells[self.code.starts[self.code.messages - 1] :]


FOUND: Final = 32
"""Number of items published for a domain too large to list."""


@dataclass(frozen=True, eq=False)
class CellWindow(CountedWindow):
    """Cell counts with the parameters of their noise.

    Attributes:
        cells: float64, shape (code.cells,).
        contributors, population: Summed over all epochs.
        estimator: Method that combines an item's rows; None selects the best.
        allowance: Amount added to the smallest of an item's cells in one-sided estimates.
    """

    code: CellCode
    cells: NDArray[np.float64]
    noise_variance: float
    contributors: int
    population: int
    estimator: Estimator | None = None
    held_variance: float = 0.0
    allowance: float = 0.0

    @cached_property
    def estimates(self) -> RowEstimates | PrefixCounts | GridCounts:
        noise, people = self.noise_variance, self.population
        match self.code:
            case HashedRows() as rows:
                return RowEstimates.from_cells(
                    rows,
                    self.cells,
                    noise,
                    people,
                    self.estimator,
                    self.contributors,
                    self.allowance,
                )
            case PrefixCells() as prefixes:
                counts = PrefixCounts(prefixes, self.cells, noise, self.contributors, people)
                return replace(counts, held_variance=self.held_variance)
            case Levels() | KeptNodes() | Grid() as tree:
                found = GridCounts.from_cells(tree, self.cells, 0.0, noise, people, people)
                return replace(found, reports=self.contributors)
            case _:
                raise TypeError(
                    f"cannot estimate items from cells encoded by {type(self.code).__name__}"
                )

    @property
    def published(self) -> ItemEstimates | HeavyHitters:
        return self.estimates.listed(MOST_PUBLISHED) or self.estimates.top(FOUND)

    def plus(self, later: Self) -> CellWindow:
        return replace(
            self,
            cells=self.cells + later.cells,
            noise_variance=self.noise_variance + later.noise_variance,
            contributors=self.contributors + later.contributors,
            population=self.population + later.population,
            held_variance=self.held_variance + later.held_variance,
            allowance=self.allowance + later.allowance,
        )
