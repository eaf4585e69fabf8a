"""Exact output distribution for the smallest window if every item has its own cell.

Rows of hashed buckets have the same noise, but too many cells to enumerate.
tests/randomizers/test_count_min.py checks which cells can differ between two users.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise
from math import comb, factorial, prod
from typing import TypeAlias

import numpy as np

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.count_min import CountMinLaw
from dpstream.randomizers.dummies import BernoulliDummies, PoissonDummies
from dpstream.randomizers.noise_tables import NoiseTable

Counts: TypeAlias = tuple[int, ...]
"""Number of messages in each cell."""


class ExactCountMin:
    def __init__(self, law: CountMinLaw, last_epoch: int) -> None:
        assert isinstance(law.code, HashedRows)
        assert law.code.direct
        self.devices = law.noise.minimum
        self.cells = law.code.cells
        dummies = law.noise.of_contributors(self.cells)
        if isinstance(dummies, BernoulliDummies):
            self.noise = self._of_subsets(probabilities(dummies.table))
        else:
            assert isinstance(dummies, PoissonDummies)
            self.noise = self._of_numbers(dummies)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return independent(self._epoch(held) for held in stream)

    def _epoch(self, held: tuple[int, ...]) -> dict[tuple[Report, ...], Fraction]:
        real = Counter(item - 1 for item in held if item)
        return {
            tuple(
                (cell,) for cell, count in enumerate(counts) for _ in range(count + real[cell])
            ): likely
            for counts, likely in self.noise.items()
        }

    def _of_numbers(self, dummies: PoissonDummies) -> dict[Counts, Fraction]:
        total = np.array([Fraction(1)])
        for table, times in dummies.tables(self.devices):
            for _ in range(times):
                total = np.convolve(total, np.array(probabilities(table)))
        return {
            counts: likely
            * Fraction(factorial(number) // prod(map(factorial, counts)), self.cells**number)
            for number, likely in enumerate(total)
            if likely
            for counts in spread_over(number, self.cells)
        }

    def _of_subsets(self, sizes: list[Fraction]) -> dict[Counts, Fraction]:
        together = {(0,) * self.cells: Fraction(1)}
        for _ in range(self.devices):
            more: defaultdict[Counts, Fraction] = defaultdict(Fraction)
            for size, likely in enumerate(sizes):
                each = likely / comb(self.cells, size)
                for chosen in combinations(range(self.cells), size):
                    for counts, before in together.items():
                        raised = tuple(n + (cell in chosen) for cell, n in enumerate(counts))
                        more[raised] += before * each
            together = more
        return dict(together)


def probabilities(table: NoiseTable) -> list[Fraction]:
    """Return the probabilities of 0, 1, 2, ... from a noise table."""
    bounds = [*[0] * table.first, 0, *table.bounds]
    return [Fraction(high - low, 1 << 128) for low, high in pairwise(bounds)]


def spread_over(number: int, cells: int) -> Iterator[Counts]:
    """Yield all ways to distribute `number` messages over cells."""
    if cells == 1:
        yield (number,)
        return
    for first in range(number + 1):
        for others in spread_over(number - first, cells - 1):
            yield (first, *others)


exact_law = ExactCountMin
