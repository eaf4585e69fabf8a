"""Rounded Gaussian noise N(0, sigma^2), drawn exactly in integers.

A draw is a uniform integer of 128 bits, looked up in an integer table of cumulative probabilities,
as in `dpstream.randomizers.noise_tables`. For a large standard deviation, the table is too long to
store. So an entry is computed when a draw is compared with it, about twenty times per draw. Only
integers are used, so entries are bit-identical on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import isqrt
from typing import Final

import numpy as np

from dpstream.randomizers.noise_tables import TABLE_BITS
from dpstream.randomizers.search import least_integer

MAX_DEVIATION: Final = 1 << 48

# The probability beyond this number of standard deviations is below 2^-146.
_REACH = 14

# Binary places of entries. Terms of the series are below 2^141, the error of truncating a term
# grows by at most that factor, and there are fewer than 2^10 terms.
_PLACES = 384


@dataclass(frozen=True, slots=True)
class NormalNoise:
    """Gaussian noise N(0, deviation^2), rounded to integers.

    >>> noise = NormalNoise(10)
    >>> [round(noise.bound(number) / 2**128, 6) for number in (-1, 0, 9)]
    [0.480061, 0.519939, 0.828944]
    """

    deviation: int

    def __post_init__(self) -> None:
        if type(self.deviation) is not int or not 1 <= self.deviation <= MAX_DEVIATION:
            raise ValueError(
                f"standard deviation of the noise is {self.deviation!r}; expected an integer from "
                "1 to 2^48"
            )

    @property
    def most(self) -> int:
        return _REACH * self.deviation

    @property
    def distance(self) -> float:
        """Maximum total variation distance of the draws from the rounded Gaussian.

        Each entry of the table is off by less than 2; the truncated probability is below 2^-146.
        """
        return float(2 * self.most + 1) * 2.0 ** (2 - TABLE_BITS) + 2.0**-146

    @property
    def variance(self) -> float:
        return self.deviation**2 + 1 / 12

    def bound(self, number: int) -> int:
        """Return 2^128 times the probability that a draw is at most `number`."""
        if number >= self.most:
            return 1 << TABLE_BITS
        if number < -self.most:
            return 0
        half = 1 << (TABLE_BITS - 1)
        if number < 0:
            return half - _beyond_the_middle(-2 * number - 1, self.deviation)
        return half + _beyond_the_middle(2 * number + 1, self.deviation)

    def draw(self, rng: np.random.Generator) -> int:
        high, low = rng.integers(0, 1 << 64, 2, dtype=np.uint64).tolist()
        uniform = high << 64 | low
        # The least number whose entry is above the uniform integer.
        return least_integer(lambda number: self.bound(number) > uniform, -self.most - 1, self.most)


def _beyond_the_middle(doubled: int, deviation: int) -> int:
    """Return 2^128 (Phi(x) - 1/2) at x = doubled / (2 deviation), off by less than 2.

    The series is Phi(x) - 1/2 = sum over n of (-1)^n x^(2n+1) / (2^n n! (2n+1)) / sqrt(2 pi).
    """
    squared, eight = doubled * doubled, 8 * deviation * deviation
    # x^(2n+1) / (2^n n!), computed from its ratio x^2 / (2n).
    term, total, order = (doubled << _PLACES) // (2 * deviation), 0, 0
    while term:
        total += -(term // (2 * order + 1)) if order % 2 else term // (2 * order + 1)
        order += 1
        term = term * squared // (eight * order)
    return (total * _density_at_0()) >> (2 * _PLACES - TABLE_BITS)


@cache
def _density_at_0() -> int:
    """Return 1 / sqrt(2 pi), in units of 2^-384."""
    spare = 32
    unit = 1 << (_PLACES + spare)
    pi = 16 * _arc_tangent_of_inverse(5, unit) - 4 * _arc_tangent_of_inverse(239, unit)
    return isqrt((unit << 2 * _PLACES) // (2 * pi))


def _arc_tangent_of_inverse(number: int, unit: int) -> int:
    """Return arctan(1 / number), in units of 1 / unit."""
    power, total, order = unit // number, 0, 1
    while power:
        total += power // order if order % 4 == 1 else -(power // order)
        power //= number * number
        order += 2
    return total
