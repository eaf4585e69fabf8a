"""A number per item: a ground-truth count, or a sum of estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.boxes import Box


@dataclass(frozen=True, slots=True, eq=False)
class ItemSums:
    """A number for each of `items` (int64, ascending, from 1); 0 for omitted items."""

    items: NDArray[np.int64]
    counts: NDArray[np.number[Any]]

    @classmethod
    def of_each(cls, items: NDArray[np.int64], counts: NDArray[np.number[Any]]) -> ItemSums:
        order = np.argsort(items)
        return cls(items[order], counts[order])

    def most(self, number: int) -> NDArray[np.int64]:
        """Return the items with the largest numbers, largest first; on ties, lower items first."""
        return self.items[np.argsort(-self.counts, kind="stable")[:number]]

    def largest(self, number: int) -> ItemSums:
        kept = np.sort(self.most(number))
        return ItemSums(kept, self.of(kept))

    def of(self, items: NDArray[np.int64]) -> NDArray[Any]:
        if not len(self.items):
            return np.zeros(len(items), self.counts.dtype)
        places = np.minimum(np.searchsorted(self.items, items), len(self.items) - 1)
        return np.where(self.items[places] == items, self.counts[places], 0)

    def within(self, box: Box, grid: tuple[int, ...]) -> float:
        if len(grid) == 1:
            first, last = np.searchsorted(self.items, [box.starts[0] + 1, box.ends[0] + 1])
            return float(self.counts[first:last].sum())
        points = np.array(np.unravel_index(self.items - 1, grid))
        starts, ends = np.array(box.starts)[:, None], np.array(box.ends)[:, None]
        return float(self.counts[((starts <= points) & (points < ends)).all(axis=0)].sum())

    def plus(self, items: NDArray[np.int64], counts: NDArray[np.float64]) -> ItemSums:
        if np.array_equal(items, self.items):
            return ItemSums(self.items, self.counts + counts)
        other, every = ItemSums.of_each(items, counts), np.union1d(self.items, items)
        return ItemSums(every, self.of(every) + other.of(every))


NO_SUMS = ItemSums(np.zeros(0, np.int64), np.zeros(0))
"""Sums before the first addition."""
