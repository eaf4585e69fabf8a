"""Distributions of the noise that dummy messages add to a cell.

A cell counts messages: real messages, and dummies that hide them. Every contributor adds its own
dummies, so the noise of a cell is a sum over contributors. If only a fraction of them is present,
so is only that fraction of the noise. Accounting uses only the ratios of consecutive probabilities:
they determine what an observer can learn about one additional or missing message.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.cell_noise_law import CellNoiseLaw

# Relative error of a ratio's logarithm.
_OF_RATIO = 4 * rounding.FUNCTION


class CellNoise(ABC):
    """Distribution p of the number of dummies in one cell, on 0, 1, 2, ...

    `mean` is the expected number of dummies, called lambda in the literature.
    """

    mean: float

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance of the number of dummies."""

    @property
    def largest(self) -> float:
        """Maximum number of dummies; infinite if unbounded."""
        return math.inf

    @property
    @abstractmethod
    def turn(self) -> tuple[Fraction, float]:
        """Panjer coefficients c and s, where p(z) / p(z - 1) = 1 + s (c - z) / z."""

    @abstractmethod
    def ratios(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return p(z) / p(z - 1), z from 1 to `largest`, with an error of a few `rounding.UNIT`."""

    def log_ratios(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return ln(p(z) / p(z - 1)) for counts z from 1 to `largest`, with small relative error.

        If the ratio is near 1, its logarithm is computed from its difference from 1, so no
        precision is lost to cancellation.
        """
        exact, slope = self.turn
        center = float(exact)
        below = float(exact - Fraction(center))
        above_one = slope * ((center - counts) + below) / counts
        logs = np.empty(len(counts))
        near = np.abs(above_one) < 0.5
        logs[near] = np.log1p(above_one[near])
        logs[~near] = np.log(self.ratios(counts[~near]))
        return logs

    def window(self, tail: float) -> tuple[int, int]:
        """Return an interval outside of which the noise lies with probability at most 2 `tail`.

        By Chernoff's bound for sub-gamma variables, with probability at least 1 - e^-L each, the
        noise is at most the mean plus sqrt(2 v L) + c L, and at least the mean minus sqrt(2 v L).
        For Poisson noise v is the variance and c is at most 1. The same values hold for binomial
        noise with the same mean. For negative-binomial noise, whose n-th cumulant is at most
        (n-1)! v c^(n-2), c is the variance divided by the mean.

        Reference: Boucheron, Lugosi and Massart, *Concentration Inequalities*, Section 2.4.

        >>> PoissonNoise(100.0).window(1e-9)
        (35, 186)
        """
        variance, exponent = max(self.mean, self.variance), -math.log(tail)
        width = math.sqrt(2 * variance * exponent)
        high = math.ceil(self.mean + width + variance / self.mean * exponent)
        return max(0, math.floor(self.mean - width)), int(min(high, self.largest))

    def weights(self, low: int, high: int) -> tuple[NDArray[np.float64], float]:
        """Return p(z) for low <= z <= high, normalized to this interval, and a log error.

        Log ratios are summed outward from the mode, so no precision is lost to cancellation. The
        log error is the logarithm of the maximum factor by which the weights are off.
        """
        anchor = min(max(math.floor(self.turn[0]), low), high)
        ratios = self.log_ratios(np.arange(low + 1, high + 1))
        falling, rising = ratios[: anchor - low], ratios[anchor - low :]
        logs = np.zeros(high - low + 1)
        logs[: anchor - low] = -rounding.running_sums(falling[::-1])[::-1]
        logs[anchor - low + 1 :] = rounding.running_sums(rising)
        largest = max(float(np.abs(falling).sum()), float(np.abs(rising).sum()))
        added = rounding.additions(len(ratios)) + 4
        logs -= math.log(float(np.exp(logs).sum()))
        # numpy sums pairwise above blocks of 128.
        total = rounding.of_sum(256) + 4 * rounding.FUNCTION
        error = (_OF_RATIO + rounding.of_sum(added) + rounding.FUNCTION) * largest + total
        return np.exp(logs), error


@dataclass(frozen=True, slots=True)
class PoissonNoise(CellNoise):
    """Poisson noise: every contributor adds Poisson(mean / contributors)."""

    mean: float

    def __post_init__(self) -> None:
        _check_positive("mean", self.mean)

    @property
    def variance(self) -> float:
        """Variance of the number of dummies; equal to the mean."""
        return self.mean

    @property
    def turn(self) -> tuple[Fraction, float]:
        """Panjer coefficients: the mean and 1."""
        return Fraction(self.mean), 1.0

    def ratios(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return mean / z."""
        ratios: NDArray[np.float64] = self.mean / counts
        return ratios


@dataclass(frozen=True, slots=True)
class BinomialNoise(CellNoise):
    """Binomial noise: each contributor adds a dummy with `probability` gamma."""

    contributors: int
    probability: float

    def __post_init__(self) -> None:
        if type(self.contributors) is not int or self.contributors < 1:
            raise ValueError(f"got {self.contributors!r} contributors; expected a positive integer")
        if not 0 < self.probability < 1:
            raise ValueError(
                f"'probability' is {self.probability!r}; expected a number above 0 and below 1"
            )

    @property
    def mean(self) -> float:  # type: ignore[override]
        """Expected number of dummies."""
        return self.contributors * self.probability

    @property
    def variance(self) -> float:
        """Variance of the number of dummies; less than the mean."""
        return self.mean * (1 - self.probability)

    @property
    def largest(self) -> float:
        """Maximum number of dummies: one per contributor."""
        return self.contributors

    @property
    def turn(self) -> tuple[Fraction, float]:
        """Panjer coefficients: (n + 1) gamma and 1 / (1 - gamma)."""
        probability = Fraction(self.probability)
        return (self.contributors + 1) * probability, float(1 / (1 - probability))

    def ratios(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (n - z + 1) / z * gamma / (1 - gamma)."""
        probability = Fraction(self.probability)
        odds = float(probability / (1 - probability))
        ratios: NDArray[np.float64] = (self.contributors + 1 - counts) / counts * odds
        return ratios


@dataclass(frozen=True, slots=True)
class NegativeBinomialNoise(CellNoise):
    """Negative-binomial noise: every contributor adds NB(shape / contributors, p).

    p(z) = C(z + r - 1, z) p^r (1 - p)^z, with shape r and p = r / (r + mean). Its dummies come in
    clusters, so it needs fewer of them than Poisson noise for the same variance.

    >>> noise = NegativeBinomialNoise(shape=40.0, mean=80.0)
    >>> noise.success, noise.variance
    (0.3333333333333333, 240.0)
    """

    shape: float
    mean: float

    def __post_init__(self) -> None:
        _check_positive("shape", self.shape)
        _check_positive("mean", self.mean)

    @property
    def success(self) -> float:
        """Success probability p = r / (r + mean)."""
        return self.shape / (self.shape + self.mean)

    @property
    def variance(self) -> float:
        """Variance mean (1 + mean / shape), which is more than the mean."""
        return self.mean * (1 + self.mean / self.shape)

    @property
    def turn(self) -> tuple[Fraction, float]:
        """Panjer coefficients: (r - 1) mean / r and p."""
        shape, mean = Fraction(self.shape), Fraction(self.mean)
        return (shape - 1) * mean / shape, float(shape / (shape + mean))

    def ratios(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (z + r - 1) / z * (1 - p)."""
        shape, mean = Fraction(self.shape), Fraction(self.mean)
        failure = float(mean / (shape + mean))
        ratios: NDArray[np.float64] = ((counts - 1) + self.shape) / counts * failure
        return ratios


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value!r}; expected a positive finite number")


def noise_of_cells(law: CellNoiseLaw, contributors: int | None = None) -> CellNoise:
    """Return the noise distribution of a cell, by default with the minimum contributor count.

    >>> noise_of_cells(CellNoiseLaw("bernoulli", 40.0, 1000), contributors=500)
    BinomialNoise(contributors=500, probability=0.04)
    """
    contributors = law.minimum if contributors is None else contributors
    share = contributors / law.minimum
    if law.dummies == "bernoulli":
        return BinomialNoise(contributors, law.mean / law.minimum)
    if law.shape is not None:
        return NegativeBinomialNoise(law.shape * share, law.mean * share)
    return PoissonNoise(law.mean if law.dummies == "shuffle" else law.mean * share)
