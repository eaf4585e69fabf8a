"""Dummy messages that hide the real ones, drawn for many contributors at once.

Every contributor sends dummies of its own, to cells chosen at random. An observer sees only the
total over all contributors. Its distribution is the same whether contributors draw one by one or
together. So the dummies of a population are drawn together, exactly; a single device is a
population of one.

The size of a transmission must not reveal the number of dummies. So a population has a capacity
that depends only on the number of contributors. In the rare case that a draw exceeds it, all
dummies are redrawn (`REDRAW_PROBABILITY`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.noise_tables import (
    NoiseTable,
    binomial_table,
    cluster_rate,
    logarithmic_table,
    poisson_table,
)
from dpstream.randomizers.search import least_integer

LARGEST_TABLE_MEAN: Final = 1 << 16
"""Maximum mean of a Poisson table. For a larger mean, draws are summed: large tables are slow."""

REDRAW_PROBABILITY: Final = 2.0**-100
"""Maximum probability that the dummies of one draw exceed their capacity. It bounds the total
variation distance of the sent dummies from their distribution; delta includes its cost."""


class Dummies(ABC):
    @abstractmethod
    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        """Draw the cells of all contributors' dummies, shape (dummies,), in unspecified order.

        There are at most 2^32 `cells`. `rng` is cryptographic randomness; seeded in tests only.
        """

    def counts(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.bincount(self.draw(contributors, cells, rng), minlength=cells)

    @property
    @abstractmethod
    def mean(self) -> float:
        """Mean number of dummies per contributor, over all cells."""

    @abstractmethod
    def rarity(self, number: float, contributors: int) -> float:
        """Return a lower bound on -ln P(total >= `number`), for a `number` above the mean.

        This is the Chernoff bound with the best exponential moment.
        """

    def most(self, contributors: int) -> int:
        """Return the dummy capacity for all contributors together, independent of their draws.

        By `rarity`, a draw exceeds it with probability at most `REDRAW_PROBABILITY`.

        >>> PoissonDummies(0.5).most(1), PoissonDummies(0.5).most(1_000_000)
        (23, 508348)
        """
        if contributors == 0:
            return 0
        # A margin above what is needed: the bound is computed with rounding errors.
        wanted = -math.log(REDRAW_PROBABILITY) + 1e-3
        fits = math.floor(self.mean * contributors) + 1
        # `most` + 1 is the least number of dummies that exceeds the capacity.
        return least_integer(lambda most: self.rarity(most, contributors) >= wanted, fits - 1) - 1


@dataclass(frozen=True, eq=False)
class PoissonDummies(Dummies):
    """A Poisson number of dummies per contributor, each in a random cell.

    The counts of the cells are independent Poisson numbers. The total for n contributors is Poisson
    with mean n times `rate`. The binary digits of n select the tables to draw it from.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> round(len(PoissonDummies(0.5).draw(1_000_000, 10, seeded_generator(1))), -4)
    500000
    """

    rate: float

    @property
    def mean(self) -> float:
        return self.rate

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        return rng.integers(0, cells, self.total(contributors, rng), dtype=np.uint32)

    def counts(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw cell by cell if that takes fewer draws; the distribution is the same."""
        of_cell = PoissonDummies(math.nextafter(self.rate / cells, math.inf))
        tables = of_cell.tables(contributors)
        if sum(times for _, times in tables) * cells > self.rate * contributors:
            return super().counts(contributors, cells, rng)
        most = self.most(contributors)
        while True:
            drawn = np.zeros(cells, np.int64)
            for table, times in tables:
                for _ in range(times):
                    drawn += table.draw(cells, rng)
            if drawn.sum() <= most:
                return drawn

    def rarity(self, number: float, contributors: int) -> float:
        mean = self.rate * contributors
        return number * math.log(number / mean) - number + mean

    def total(self, contributors: int, rng: np.random.Generator) -> int:
        most = self.most(contributors)
        while True:
            drawn = 0
            for table, times in self.tables(contributors):
                drawn += int(table.draw(times, rng).sum())
            if drawn <= most:
                return drawn

    def tables(self, contributors: int) -> list[tuple[NoiseTable, int]]:
        return [
            _shared_table(self.rate, digit)
            for digit in range(contributors.bit_length())
            if contributors >> digit & 1
        ]

    def distance(self, contributors: int) -> float:
        return math.fsum(table.distance * times for table, times in self.tables(contributors))


@lru_cache(maxsize=256)
def _shared_table(mean: float, digit: int) -> tuple[NoiseTable, int]:
    """Return a table and a number of draws, whose sum has a mean of `mean` times 2^digit."""
    # The mean is halved until the table is small; multiplying by a power of two is exact.
    halvings = max(0, math.frexp(math.ldexp(mean, digit) / LARGEST_TABLE_MEAN)[1])
    return poisson_table(math.ldexp(mean, digit - halvings)), 1 << halvings


@dataclass(frozen=True, eq=False)
class ClusteredDummies(Dummies):
    """A Poisson number of clusters per contributor, each in a random cell.

    Cluster sizes are logarithmic, so the counts of the cells are independent negative-binomial
    numbers. To each cell, a contributor adds noise of shape `shape` and mean `cell_mean`.
    """

    cells: int
    shape: float
    cell_mean: float

    @property
    def mean(self) -> float:
        return self.cells * self.cell_mean

    @cached_property
    def _sizes(self) -> NoiseTable:
        return logarithmic_table(self.cell_mean / (self.shape + self.cell_mean))

    @cached_property
    def _clusters(self) -> PoissonDummies:
        return PoissonDummies(cluster_rate(self.shape, self.cell_mean, self.cells))

    def rarity(self, number: float, contributors: int) -> float:
        shape, mean = self.shape * self.cells * contributors, self.mean * contributors
        above = math.log((shape + number) / (shape + mean))
        return number * (math.log(number / mean) - above) - shape * above

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        if cells != self.cells:
            raise ValueError(f"'cells' is {cells}; expected {self.cells}, the declared number")
        most = self.most(contributors)
        while True:
            clusters = self._clusters.draw(contributors, cells, rng)
            sizes = self._sizes.draw(len(clusters), rng)
            if sizes.sum() <= most:
                return np.repeat(clusters, sizes)


@dataclass(frozen=True, eq=False)
class BernoulliDummies(Dummies):
    """At most one dummy per contributor and cell, with `probability` gamma (Ghazi et al. 2019)."""

    cells: int
    probability: float

    @property
    def mean(self) -> float:
        return self.cells * self.probability

    @cached_property
    def table(self) -> NoiseTable:
        return binomial_table(self.cells, self.probability)

    def rarity(self, number: float, contributors: int) -> float:
        cells = self.cells * contributors
        if number > cells:
            return math.inf
        share = number / cells
        without = (1 - share) * math.log((1 - share) / (1 - self.probability)) if share < 1 else 0.0
        return cells * (share * math.log(share / self.probability) + without)

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        if cells != self.cells:
            raise ValueError(f"'cells' is {cells}; expected {self.cells}, the declared number")
        most = self.most(contributors)
        wanted = self.table.draw(contributors, rng)
        while wanted.sum() > most:
            wanted = self.table.draw(contributors, rng)
        # Cells of a contributor are distinct, so duplicates are redrawn.
        drawn_cells = np.zeros(0, np.int64)
        missing = wanted
        while missing.any():
            owners = np.repeat(np.arange(contributors), missing)
            drawn = rng.integers(0, cells, len(owners), dtype=np.int64)
            drawn_cells = np.union1d(drawn_cells, owners * cells + drawn)
            missing = wanted - np.bincount(drawn_cells // cells, minlength=contributors)
        return (drawn_cells % cells).astype(np.uint32)
