"""Privacy loss distributions, composed numerically and never below the true loss.

The privacy loss of an outcome is ln(P / Q), where P and Q are its probabilities in two worlds.
Losses of independent outcomes are additive. Delta is the mean of (1 - e^(epsilon - loss))+ under P,
so more probability or a larger loss can only increase it.

Rounding to a grid is conservative: the probabilities of an outcome in both worlds are split between
the two neighboring grid points so that each part has the loss of its point ("Connect the Dots",
Doroshenko et al. 2022). The outcome itself reveals no more than the split one. Grids of wide
distributions are made coarser in the same way.

Convolutions are direct sums of positive numbers. The error of a fast Fourier transform would grow
with the largest probability and the number of compositions: for some hundred thousand cells it
would exceed the target deltas. Here every sum has a small relative error. Its bound is tracked
through all compositions, up to 2^24 cells and beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.search import least_real

# Maximum mass that a composition cuts off the grid; it counts as certain loss.
_TRUNCATION = 1e-20
# Maximum number of compositions to compute one power.
_COMPOSITIONS = 128
# A longer grid is made coarser, which adds 1e-5 to the variance of the losses.
_MOST_POINTS = 4096


@dataclass(frozen=True, slots=True)
class Losses:
    """Privacy losses of the outcomes of one draw.

    Attributes:
        losses: float64, ln(P / Q) of the outcomes that are possible with both neighbors.
        masses: float64, the probabilities P of these outcomes with the first neighbor.
        certain: Probability of all other outcomes, including outcomes far from the mean.
        slack: Maximum amount by which a true loss exceeds its entry in `losses`.
        rounding: Logarithm of the maximum ratio of a true mass to its entry in `masses`.
    """

    losses: NDArray[np.float64]
    masses: NDArray[np.float64]
    certain: float
    slack: float
    rounding: float


@dataclass(frozen=True, slots=True)
class LossDistribution:
    """Distribution of the privacy loss on a grid of spacing `width`.

    ``masses[i]`` is the probability of the loss ``(first + i) * width``. `certain` is the
    probability of outcomes that reveal the first neighbor. `slack` and `rounding` are as in
    `Losses`.
    """

    width: float
    first: int
    masses: NDArray[np.float64]
    certain: float
    slack: float = 0.0
    rounding: float = 0.0

    @property
    def last(self) -> int:
        """Index of the last grid point."""
        return self.first + len(self.masses) - 1

    def delta(self, epsilon: float) -> float:
        """Return the least delta for an epsilon, rounded up."""
        ends = abs(self.first) + abs(self.last)
        reached = epsilon - self.slack - rounding.FUNCTION * (abs(epsilon) + ends * self.width)
        start = max(0, math.floor(reached / self.width) - self.first)
        losses = self.width * np.arange(self.first + start, self.last + 1)
        parts = -np.expm1(np.minimum(reached - losses, 0.0))
        lost = rounding.of_sum(len(losses) + 2) + 2 * rounding.FUNCTION + self.rounding
        return min(1.0, (self.certain + float(parts @ self.masses[start:])) * math.exp(lost))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0, rounded up; infinite if delta is too small."""
        high = (max(self.last, 0) + 1) * self.width + 2 * self.slack
        high *= 1 + 64 * rounding.UNIT
        if self.delta(high) > delta:
            return math.inf
        return least_real(lambda epsilon: self.delta(epsilon) <= delta, 0.0, high)

    def composed_with(self, other: LossDistribution, truncated: float = 0.0) -> LossDistribution:
        """Compose with an independent distribution; the ratio of widths is a power of two.

        Mass of up to `truncated` can be cut off at either end. At the upper end it counts as
        certain loss; at the lower end it is moved to the least remaining loss.
        """
        one, two = self._kept_within(), other._kept_within()
        while one.width != two.width:
            one, two = (one.coarser(), two) if one.width < two.width else (one, two.coarser())
        lost = rounding.of_sum(min(len(one.masses), len(two.masses)) + 1)
        both = LossDistribution(
            one.width,
            one.first + two.first,
            np.convolve(one.masses, two.masses),
            one.certain + two.certain * (1 - one.certain),
            one.slack + two.slack,
            one.rounding + two.rounding + lost,
        )
        return both._truncated(truncated)

    def coarser(self) -> LossDistribution:
        """Return the distribution on every second grid point; other points' masses are split.

        >>> masses = LossDistribution(0.1, 1, np.array([1.0]), 0.0).coarser().masses
        >>> masses.round(3).tolist()  # about half of the mass at loss 0 and half at loss 0.2
        [0.475, 0.525]
        """
        padded = np.pad(self.masses, (self.first % 2, (self.last + 1) % 2))
        kept, split = padded[::2], padded[1::2]
        # Q is then split in proportion to e^-loss as well. For `up` from 1/2 on, 1 - up is exact.
        up = min(1.0, (1 + 4 * rounding.FUNCTION) / (1 + math.exp(-self.width)))
        masses = np.zeros(len(kept) + 1)
        masses[:-1] = kept
        masses[:-1] += split * (1 - up)
        masses[1:] += split * up
        return LossDistribution(
            2 * self.width,
            self.first // 2,
            masses,
            self.certain,
            self.slack,
            self.rounding + 4 * rounding.UNIT,
        )

    def _kept_within(self) -> LossDistribution:
        return self if len(self.masses) <= _MOST_POINTS else self.coarser()._kept_within()

    def _truncated(self, mass: float) -> LossDistribution:
        below, above = np.cumsum(self.masses), np.cumsum(self.masses[::-1])
        low = int(np.searchsorted(below, mass, side="right"))
        high = len(self.masses) - int(np.searchsorted(above, mass, side="right"))
        if low >= high or (low == 0 and high == len(self.masses)):
            return self
        masses = self.masses[low:high].copy()
        certain = self.certain
        if low:
            masses[0] += below[low - 1]
        if high < len(self.masses):
            certain += float(above[len(self.masses) - high - 1])
        return replace(
            self,
            first=self.first + low,
            masses=masses,
            certain=certain,
            rounding=self.rounding + rounding.of_sum(len(self.masses)),
        )


class Powers:
    """Self-compositions of a distribution, with cached squares."""

    def __init__(self, single: LossDistribution, most: int) -> None:
        self._squares = [single]
        self._truncated = _TRUNCATION / most / _COMPOSITIONS

    def of(self, cells: int) -> LossDistribution:
        """Return the composition of `cells` independent copies; `cells` must be at least 1."""
        whole: LossDistribution | None = None
        for bit in range(cells.bit_length()):
            if bit == len(self._squares):
                square, mass = self._squares[-1], self._truncated * (1 << bit)
                self._squares.append(square.composed_with(square, mass))
            if cells >> bit & 1:
                square, mass = self._squares[bit], self._truncated * (1 << bit)
                whole = square if whole is None else whole.composed_with(square, mass)
        assert whole is not None
        return whole


def on_grid(privacy_losses: Losses, width: float) -> LossDistribution:
    """Return the distribution on a grid, with losses raised by their floating-point error."""
    most = float(np.abs(privacy_losses.losses).max(initial=0.0))
    losses = (
        privacy_losses.losses + privacy_losses.slack + 4 * rounding.FUNCTION * (1 + most + width)
    )
    below = np.floor(losses / width)
    points = below.astype(np.int64)
    # The mass is split so that each part of P and Q has the loss of its grid point.
    over, under = losses - below * width, (below + 1) * width - losses
    down = np.clip(np.exp(-over) * np.expm1(-under) / math.expm1(-width), 0.0, 1.0)
    first = int(points.min())
    count = int(points.max()) - first + 2
    masses = np.zeros(count)
    masses[:-1] += np.bincount(points - first, privacy_losses.masses * down, count - 1)
    masses[1:] += np.bincount(points - first, privacy_losses.masses * (1 - down), count - 1)
    lost = rounding.of_sum(int(np.bincount(points - first).max())) + 4 * rounding.UNIT
    return LossDistribution(
        width, first, masses, privacy_losses.certain, 0.0, privacy_losses.rounding + lost
    )


def composed(kinds: Sequence[tuple[Losses, int]], width: float) -> LossDistribution:
    """Return the loss distribution of independent outcomes: `kinds` are pairs (losses, count)."""
    whole: LossDistribution | None = None
    for privacy_losses, count in kinds:
        part = Powers(on_grid(privacy_losses, width), count).of(count)
        whole = part if whole is None else whole.composed_with(part, _TRUNCATION / len(kinds))
    assert whole is not None
    return whole
