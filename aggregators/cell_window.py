"""One window of counts of cells, or the sum of several, and what it says when it is asked.

Counts stand without the mean of their noise, and scaled from those present to the population.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregators.estimate import NORMAL_95, Estimate, ItemEstimates
from aggregators.found_items import FoundItems
from aggregators.grid_counts import GridCounts
from aggregators.prefix_search import heavy_items
from aggregators.row_estimates import RowEstimates
from randomizers.cell_codes.codes import CellCode
from randomizers.cell_codes.grid import Grid
from randomizers.cell_codes.hashed_rows import HashedRows
from randomizers.cell_codes.kept_nodes import KeptNodes
from randomizers.cell_codes.levels import Levels
from randomizers.cell_codes.prefixes import PrefixCells
from randomizers.count_min import Estimator

MOST_PUBLISHED: Final = 1 << 15
"""Of larger domains the items most held are published."""

FOUND: Final = 32
"""How many items are published of a domain too large to be listed."""


class NotAskedForError(ValueError):
    """The cells of a job were not made for this question; the message says which are."""


@dataclass(frozen=True, eq=False)
class CellWindow:
    """What was received, and what is known of its noise.

    Attributes:
        code: which cells an item has.
        cells: float64, shape (code.cells,).
        noise_variance: of each of them.
        contributors: users whose messages these are; for several windows, of all of them.
        population: users the estimates are about, in the same way.
        estimator: of single items from several rows; None for the best.
    """

    code: CellCode
    cells: NDArray[np.float64]
    noise_variance: float
    contributors: int
    population: int
    estimator: Estimator | None = None

    @cached_property
    def rows(self) -> RowEstimates:
        """Estimates of single items.

        Raises:
            NotAskedForError: the cells are those of a tree.
        """
        if not isinstance(self.code, HashedRows):
            raise NotAskedForError("single items are for jobs with queries: items")
        return RowEstimates.from_cells(
            self.code,
            self.cells,
            self.noise_variance,
            self.population,
            self.estimator,
            self.contributors,
        )

    @cached_property
    def grid(self) -> GridCounts:
        """Estimates of ranges, boxes and quantiles.

        Raises:
            NotAskedForError: the cells are not those of a tree.
        """
        code = self.code
        if not isinstance(code, Levels | KeptNodes | Grid):
            raise NotAskedForError("ranges and quantiles are for jobs with queries: ranges")
        counts = GridCounts.from_cells(
            code, self.cells, 0.0, self.noise_variance, self.population, self.population
        )
        return replace(counts, reports=self.contributors)

    def top(self, count: int) -> FoundItems:
        """The items most held.

        Raises:
            NotAskedForError: the cells are those of a tree over numbers.
        """
        if isinstance(self.code, PrefixCells):
            return self._searched(self.code, count)
        return self._scanned(count)

    def item(self, item: int) -> Estimate:
        """The estimate of one item, from 1 on."""
        if isinstance(self.code, HashedRows):
            return self.rows.item(item)
        if isinstance(self.code, PrefixCells):
            return self._prefix_item(self.code, item)
        sizes = self.grid.values.shape
        place = np.unravel_index(item - 1, sizes)
        starts = [int(each) for each in place]
        return self.grid.box(starts, [each + 1 for each in starts])

    @property
    def published(self) -> ItemEstimates | FoundItems:
        """What is published of the window."""
        if isinstance(self.code, PrefixCells):
            return self.top(FOUND)
        if isinstance(self.code, HashedRows):
            if self.code.size > MOST_PUBLISHED:
                return self.top(FOUND)
            return self.rows.all_items()
        if self.grid.values.size > MOST_PUBLISHED:
            return self.top(FOUND)
        return self._leaves

    @cached_property
    def _leaves(self) -> ItemEstimates:
        """Single values of a tree; each has its own error, the largest of which is stated."""
        deviation = self.grid.largest_value_deviation
        return ItemEstimates(
            values=self.grid.values.reshape(-1),
            standard_deviation=deviation,
            half_width=NORMAL_95 * deviation,
            reports=self.contributors,
            population=self.population,
        )

    def _prefix_item(self, code: PrefixCells, item: int) -> Estimate:
        """By the last level of prefixes, which holds whole items."""
        last = code.messages - 1
        cells = self.cells[code.starts[last] :]
        value = float(cells[code.level_buckets(last, np.array([item - 1]))[0]])
        deviation, half_width = math.sqrt(self.noise_variance), 0.0
        if not code.levels[last].direct:
            # What else is in a cell is what is in any of them.
            usual = float(np.median(cells))
            value -= usual
            half_width = float(np.quantile(np.abs(cells - usual), 0.95))
            deviation = half_width / NORMAL_95
        half_width = half_width or NORMAL_95 * deviation
        return Estimate(
            value=value,
            standard_deviation=deviation,
            low=value - half_width,
            high=value + half_width,
            reports=self.contributors,
            population=self.population,
        )

    def _searched(self, code: PrefixCells, count: int) -> FoundItems:
        found = heavy_items(code, self.cells, 0.0, self.noise_variance, self.population, count)
        values = [estimate.value or 0.0 for estimate in found.estimates]
        deviation = max(
            (estimate.standard_deviation or 0.0 for estimate in found.estimates),
            default=math.sqrt(self.noise_variance),
        )
        return FoundItems(
            items=np.array(found.items, np.int64),
            values=np.array(values),
            standard_deviation=deviation,
            half_width=NORMAL_95 * deviation,
            found_above=found.found_above,
            reports=self.contributors,
            population=self.population,
        )

    def _scanned(self, count: int) -> FoundItems:
        if isinstance(self.code, HashedRows):
            rows = self.rows
            values = rows.values(np.arange(1, self.code.size + 1))
            deviation, half_width, flags = rows.standard_deviation, rows.half_width, rows.flags
        else:
            leaves = self._leaves
            values, flags = leaves.values, leaves.flags
            deviation, half_width = leaves.standard_deviation, leaves.half_width
        count = min(count, len(values))
        largest = np.argpartition(-values, count - 1)[:count]
        order = largest[np.argsort(-values[largest], kind="stable")]
        return FoundItems(
            items=order + 1,
            values=values[order],
            standard_deviation=deviation,
            half_width=half_width,
            found_above=float(values[order[-1]]) + half_width,
            reports=self.contributors,
            population=self.population,
            flags=flags,
        )
