"""Discrete Laplace noise, clamped to a bounded range.

Measurements of a device are -1, 0 or 1. The noise is an integer too, so no fixed-point resolution
has to be chosen. The noise is z with probability proportional to q^|z|; each outermost value also
has the probability of all values beyond it. The report is the measurement plus noise, clamped to
-M..M. So every measurement has the same set of possible reports, and no truncation costs delta. The
loss is exact: it is computed, entry by entry, from the table that devices draw from.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.laws import Constants
from dpstream.randomizers.noise_tables import TABLE_BITS, NoiseTable

MOST_BOUND: Final = 1 << 19
"""Maximum of M; creating a table of this size takes a second."""

_FIRST_BITS = 256


@dataclass(frozen=True, slots=True)
class ClampedNoise(Constants):
    """Noise of one measurement, with `decay` q; reports are clamped to -M..M, where M is `most`.

    >>> noise = ClampedNoise(decay=0.5, most=20)
    >>> round(noise.gap, 6), round(noise.variance, 3), round(float(noise.odds(1)), 9)
    (0.999999, 4.0, 2.0)
    """

    decay: float
    most: int

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1 or not 2 <= self.most <= MOST_BOUND:
            raise ValueError(
                f"'decay' is {self.decay!r} and 'most' is {self.most!r}; expected 'decay' above 0 "
                f"and below 1, and 'most' from 2 to {MOST_BOUND:,}"
            )

    @property
    def table(self) -> NoiseTable:
        """Table that devices draw noise from, with values from -M - 1 to M + 1."""
        return _table(self.decay, self.most)

    def masses(self, measurement: int) -> tuple[int, ...]:
        """Return 2^128 times the probability of each report -M, ..., M for a measurement."""
        return _masses(self.decay, self.most, measurement)

    def odds(self, step: int) -> Fraction:
        """Return the maximum ratio of a report's probabilities, for measurements `step` apart."""
        pairs = [(0, 1), (-1, 0)] if step == 1 else [(-1, 1)]
        return max(
            max(Fraction(a, b), Fraction(b, a))
            for one, other in pairs
            for a, b in zip(self.masses(one), self.masses(other), strict=True)
        )

    @property
    def gap(self) -> float:
        """Mean report for the measurement 1; the mean is 0 for 0, and -`gap` for -1."""
        return _moments(self.decay, self.most)[0]

    @property
    def variance(self) -> float:
        """Maximum variance of a report, over all measurements."""
        return _moments(self.decay, self.most)[1]

    def reports(
        self, measurements: NDArray[np.int8], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return measurements plus noise, clamped, plus M; int64, same shape, from 0 to 2 M."""
        drawn = self.table.draw(measurements.size, rng).reshape(measurements.shape)
        drawn += measurements
        return np.clip(drawn, -self.most, self.most, out=drawn) + self.most


@lru_cache(maxsize=16)
def _table(decay: float, most: int) -> NoiseTable:
    numerator, denominator = decay.as_integer_ratio()
    side = [1 << _FIRST_BITS]
    for _ in range(most + 1):
        side.append(side[-1] * numerator // denominator)
    # Mass of all larger numbers: a geometric series.
    side[-1] = side[-1] * denominator // (denominator - numerator)
    weights = [*reversed(side[1:]), *side]
    total = sum(weights)
    bounds = tuple((each << TABLE_BITS) // total for each in accumulate(weights))
    # Distance 0: devices draw from the table itself, and the declared loss is the table's own.
    return NoiseTable(-most - 1, bounds, distance=0.0)


@lru_cache(maxsize=48)
def _masses(decay: float, most: int, measurement: int) -> tuple[int, ...]:
    noise = [high - low for low, high in pairwise((0, *_table(decay, most).bounds))]
    # Clamping merges all results of -M or less into one report, and all results of M or more.
    low, high = 1 - measurement, 2 * most + 1 - measurement
    return (sum(noise[: low + 1]), *noise[low + 1 : high], sum(noise[high:]))


@lru_cache(maxsize=16)
def _moments(decay: float, most: int) -> tuple[float, float]:
    seen = np.arange(-most, most + 1, dtype=np.float64)
    laws = [
        np.array([mass / (1 << TABLE_BITS) for mass in _masses(decay, most, measurement)])
        for measurement in (0, 1)
    ]
    means = [float(law @ seen) for law in laws]
    variances = [float(law @ seen**2) - mean**2 for law, mean in zip(laws, means, strict=True)]
    return means[1], max(variances)
