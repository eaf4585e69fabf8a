"""Bits that are each reversed with the same probability, counted cell by cell.

Of n users each has a bit for every cell. What an observer of all of them together sees of a cell is
how many bits are 1, and that is drawn at once: of c bits that are 1 Binomial(c, p) are reversed,
and Binomial(n - c, p) of the others. Drawing it for all users together or for each of them gives
the same law.

A binomial number of n trials is a sum of one for each binary digit of n, drawn from tables made in
integers (`dpstream.randomizers.noise_tables`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.noise_tables import NoiseTable, binomial_table

MOST_TRIALS: Final = 1 << 40
"""Of one binomial number."""

_TABLE_DIGITS = 24


@dataclass(frozen=True, slots=True)
class FlippedBits:
    """The law of bits that are each reversed on their own.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> ones = np.array([0, 1_000_000])
    >>> FlippedBits(Fraction(1, 4)).ones(ones, 1_000_000, seeded_generator(1)).round(-4).tolist()
    [250000, 750000]

    Attributes:
        probability: that a bit is reversed, above 0 and below 1.
    """

    probability: Fraction

    def ones(
        self, ones: NDArray[np.int64], bits: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """How many bits of each cell are 1 afterwards.

        Args:
            ones: how many are before, int64, shape (cells,), from 0 to `bits`.
            bits: how many each cell has, at most `MOST_TRIALS`.
            rng: cryptographic randomness; seeded in tests only.

        Returns:
            int64, shape (cells,).
        """
        lost = self.reversed(ones, rng)
        return ones - lost + self.reversed(bits - ones, rng)

    def reversed(self, bits: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """How many of so many bits are reversed: binomial numbers, int64, shape (cells,)."""
        reversed_ = np.zeros(len(bits), np.int64)
        for digit in _digits(int(bits.max(initial=0))):
            table, times = _table(self.probability, digit)
            drawn = np.flatnonzero(bits >> digit & 1)
            for _ in range(times):
                reversed_[drawn] += table.draw(len(drawn), rng)
        return reversed_

    def distance(self, bits: int) -> float:
        """How far one number drawn of up to so many bits is from its law, in total variation."""
        tables = (_table(self.probability, digit) for digit in _digits(bits))
        return sum(table.distance * times for table, times in tables)


def _digits(bits: int) -> range:
    """Where a number of bits has digits; seconds of tables are not made for one too large."""
    digits = range(bits.bit_length())
    if digits and 1 << digits[-1] > MOST_TRIALS:
        raise ValueError(f"2^{digits[-1]} bits in a cell, must be at most {MOST_TRIALS:,}")
    return digits


@lru_cache(maxsize=256)
def _table(probability: Fraction, digit: int) -> tuple[NoiseTable, int]:
    """Binomial numbers of 2^digit trials: a table, and how many draws make one."""
    halvings = max(0, digit - _TABLE_DIGITS)
    return binomial_table(1 << digit - halvings, probability), 1 << halvings
