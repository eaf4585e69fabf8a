"""Messages that hide the real ones, as many contributors together send them.

Every contributor sends dummies of its own, to cells chosen at random. What an observer sees of them
is their sum over contributors, and for that it is the same whether it is drawn one by one or at
once; so a population is drawn at once, exactly, and one device is a population of one.

How many there are must not show in the size of what is sent: a population is given room for a
number that depends on the contributors alone, and in the rare case that more are drawn, all are
drawn anew (`MISFIT`).
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
"""Poisson numbers of larger means are sums of draws: longer tables take long to make."""

MISFIT: Final = 2.0**-100
"""How likely it is, at most, that the dummies of one draw do not fit the room they are given: so
far is what is sent from its law, in total variation, and what that costs belongs into delta."""


class Dummies(ABC):
    """A law of dummies, from which those of any number of contributors are drawn."""

    @abstractmethod
    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        """The cells of all their dummies, shape (dummies,), in no stated order.

        Args:
            contributors: how many there are.
            cells: how many there are to choose from, at most 2^32.
            rng: cryptographic randomness; seeded in tests only.
        """

    def counts(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """How many of their dummies are in each cell, shape (cells,); arguments as for `draw`."""
        return np.bincount(self.draw(contributors, cells, rng), minlength=cells)

    @property
    @abstractmethod
    def mean(self) -> float:
        """How many dummies a contributor sends on average, over all cells."""

    @abstractmethod
    def rarity(self, number: float, contributors: int) -> float:
        """A bound on -ln P(at least so many dummies in all), for numbers above their mean.

        It is Chernoff's: by how much the least exponential moment falls below 1.
        """

    def most(self, contributors: int) -> int:
        """How many dummies so many contributors have room for, whatever they draw.

        The least number, up to rounding, that is exceeded with a probability of at most `MISFIT`.

        >>> PoissonDummies(0.5).most(1), PoissonDummies(0.5).most(1_000_000)
        (23, 508348)
        """
        if contributors == 0:
            return 0
        # A little more than is needed: the bound is computed with rounding errors.
        wanted = -math.log(MISFIT) + 1e-3
        fits = math.floor(self.mean * contributors) + 1
        # With one more than `most`, the bound holds.
        return least_integer(lambda most: self.rarity(most, contributors) >= wanted, fits - 1) - 1


@dataclass(frozen=True, eq=False)
class PoissonDummies(Dummies):
    """Poisson many of each contributor, each in a cell of its own choice.

    The counts of the cells are independent Poisson numbers. Those of n contributors are Poisson
    with n times the mean: the binary digits of n say which tables are drawn from.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> round(len(PoissonDummies(0.5).draw(1_000_000, 10, seeded_generator(1))), -4)
    500000

    Attributes:
        rate: the mean of a contributor, over all cells.
    """

    rate: float

    @property
    def mean(self) -> float:
        """See `Dummies.mean`."""
        return self.rate

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        """See `Dummies.draw`."""
        return rng.integers(0, cells, self.total(contributors, rng), dtype=np.uint32)

    def counts(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See `Dummies.counts`: cell by cell where that takes fewer draws, by the same law."""
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
        """See `Dummies.rarity`."""
        mean = self.rate * contributors
        return number * math.log(number / mean) - number + mean

    def total(self, contributors: int, rng: np.random.Generator) -> int:
        """How many dummies so many contributors send together."""
        most = self.most(contributors)
        while True:
            drawn = 0
            for table, times in self.tables(contributors):
                drawn += int(table.draw(times, rng).sum())
            if drawn <= most:
                return drawn

    def tables(self, contributors: int) -> list[tuple[NoiseTable, int]]:
        """What the total is drawn from: tables, and how often each is drawn from."""
        return [
            _shared_table(self.rate, digit)
            for digit in range(contributors.bit_length())
            if contributors >> digit & 1
        ]

    def distance(self, contributors: int) -> float:
        """How far, at most, the total is from its law, in total variation."""
        return math.fsum(table.distance * times for table, times in self.tables(contributors))


@lru_cache(maxsize=256)
def _shared_table(mean: float, digit: int) -> tuple[NoiseTable, int]:
    """Poisson numbers of mean times 2^digit: a table, and how many draws make one."""
    # Halved until it is small: a mean times a power of two is exact.
    halvings = max(0, math.frexp(math.ldexp(mean, digit) / LARGEST_TABLE_MEAN)[1])
    return poisson_table(math.ldexp(mean, digit - halvings)), 1 << halvings


@dataclass(frozen=True, eq=False)
class ClusteredDummies(Dummies):
    """Poisson many clusters of each contributor, each in a cell of its own choice.

    With logarithmic sizes the counts of the cells are independent negative-binomial numbers.

    Attributes:
        cells: how many there are.
        shape: of the negative-binomial noise of a cell that a contributor adds.
        cell_mean: of that noise.
    """

    cells: int
    shape: float
    cell_mean: float

    @property
    def mean(self) -> float:
        """See `Dummies.mean`."""
        return self.cells * self.cell_mean

    @cached_property
    def _sizes(self) -> NoiseTable:
        return logarithmic_table(self.cell_mean / (self.shape + self.cell_mean))

    @cached_property
    def _clusters(self) -> PoissonDummies:
        return PoissonDummies(cluster_rate(self.shape, self.cell_mean, self.cells))

    def rarity(self, number: float, contributors: int) -> float:
        """See `Dummies.rarity`; all cells together are negative-binomial."""
        shape, mean = self.shape * self.cells * contributors, self.mean * contributors
        above = math.log((shape + number) / (shape + mean))
        return number * (math.log(number / mean) - above) - shape * above

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        """See `Dummies.draw`; `cells` must be those of the law."""
        if cells != self.cells:
            raise ValueError(f"made for {self.cells} cells, asked for {cells}")
        most = self.most(contributors)
        while True:
            clusters = self._clusters.draw(contributors, cells, rng)
            sizes = self._sizes.draw(len(clusters), rng)
            if sizes.sum() <= most:
                return np.repeat(clusters, sizes)


@dataclass(frozen=True, eq=False)
class BernoulliDummies(Dummies):
    """At most one of each contributor in each cell, with a probability: as published.

    Attributes:
        cells: how many there are.
        probability: gamma, above 0 and below 1.
    """

    cells: int
    probability: float

    @property
    def mean(self) -> float:
        """See `Dummies.mean`."""
        return self.cells * self.probability

    @cached_property
    def table(self) -> NoiseTable:
        """In how many cells a contributor has a dummy."""
        return binomial_table(self.cells, self.probability)

    def rarity(self, number: float, contributors: int) -> float:
        """See `Dummies.rarity`."""
        cells = self.cells * contributors
        if number > cells:
            return math.inf
        share = number / cells
        without = (1 - share) * math.log((1 - share) / (1 - self.probability)) if share < 1 else 0.0
        return cells * (share * math.log(share / self.probability) + without)

    def draw(self, contributors: int, cells: int, rng: np.random.Generator) -> NDArray[np.uint32]:
        """See `Dummies.draw`; `cells` must be those of the law."""
        if cells != self.cells:
            raise ValueError(f"dummies for {self.cells} cells, asked for {cells}")
        most = self.most(contributors)
        wanted = self.table.draw(contributors, rng)
        while wanted.sum() > most:
            wanted = self.table.draw(contributors, rng)
        # Cells of a contributor are distinct: what has come twice is drawn again.
        drawn_cells = np.zeros(0, np.int64)
        missing = wanted
        while missing.any():
            owners = np.repeat(np.arange(contributors), missing)
            drawn = rng.integers(0, cells, len(owners), dtype=np.int64)
            drawn_cells = np.union1d(drawn_cells, owners * cells + drawn)
            missing = wanted - np.bincount(drawn_cells // cells, minlength=contributors)
        return (drawn_cells % cells).astype(np.uint32)
