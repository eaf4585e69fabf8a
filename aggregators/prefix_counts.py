"""How many users hold an item of a domain too large to be listed, from cells of prefixes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.counts import Counts
from dpstream.aggregators.estimate import NORMAL_95, Estimate
from dpstream.aggregators.found_items import FoundItems
from dpstream.aggregators.prefix_search import heavy_items
from dpstream.randomizers.cell_codes.prefixes import PrefixCells


@dataclass(frozen=True, slots=True, eq=False)
class PrefixCounts(Counts):
    """Estimates of single items, and a search for those most held.

    Attributes:
        code: which cells an item has.
        cells: counts without the mean of the noise, float64, shape (code.cells,).
        noise_variance: of each of them.
        reports: how many contributors they rest on.
        population: users the estimates are about.
        flags: what a reader has to know.
        held_variance: what is added to the variance of a cell by the users in it, at most.
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
        """See `Counts`."""
        lengths = ", ".join(str(level.length) for level in self.code.levels)
        return f"a search through prefixes of {lengths} bits"

    @property
    def error_sample(self) -> NDArray[np.float64] | None:
        """See `Counts`.

        Other items are in an item's cell as they are in any cell of the last level.
        """
        if self.code.levels[-1].direct:
            return None
        return np.asarray(self._last_level - np.median(self._last_level), np.float64)

    def of_items(self, items: Sequence[int] | None = None) -> Iterator[tuple[int, Estimate]]:
        """See `Counts`: by the last level of prefixes, which holds whole items."""
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

    def top(self, count: int) -> FoundItems:
        """See `Counts`."""
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
