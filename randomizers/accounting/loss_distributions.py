"""Privacy loss distributions: composed numerically, and never below the truth.

The privacy loss of an outcome is ln(P / Q), P and Q being its probabilities in two worlds, and the
losses of independent outcomes add up. Delta is the mean of (1 - e^(epsilon - loss))+ under P: more
probability, or a larger loss, can only make it larger.

On a grid, rounding is against ourselves: the probabilities that an outcome has in both worlds are
split between the two neighbouring points of the grid, so that each part has the loss of its point
("Connect the Dots", Doroshenko et al. 2022). Whoever sees the outcome alone sees less than that.
When distributions have become wide, the grid is made coarser in the same way.

They are composed by the sums of their definition, of positive numbers only. A fast Fourier
transform would be off by a part of the largest probability, and that in proportion to the number of
compositions: for some hundred thousand cells by more than the deltas looked for. Here every sum is
off by a small part of itself, which is bounded and added up along the way, up to 2^24 cells and
beyond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.search import least_real

# Mass that a composition leaves beyond the grid: counted as certain loss.
_TRUNCATION = 1e-20
# Compositions of one power are at most as many.
_COMPOSITIONS = 128
# More points are halved, which adds 1e-5 to the variance of the losses.
_MOST_POINTS = 4096


@dataclass(frozen=True, slots=True)
class Losses:
    """The privacy loss of one outcome, whatever it may be.

    Attributes:
        losses: float64, ln(P / Q) of outcomes that both neighbours may give.
        masses: float64, their probabilities P with the first neighbour.
        certain: probability of all other outcomes, those far from the mean included.
        slack: how much larger a loss may be than is written here.
        rounding: the logarithm of how many times larger a mass may be.
    """

    losses: NDArray[np.float64]
    masses: NDArray[np.float64]
    certain: float
    slack: float
    rounding: float


@dataclass(frozen=True, slots=True)
class LossDistribution:
    """The privacy loss on a grid.

    Attributes:
        width: of the grid.
        first: the first of its points with a mass; its loss is `first` times `width`.
        masses: float64, of the points from there on, with the first neighbour.
        certain: probability of outcomes that give the first neighbour away.
        slack: how much larger losses may be than is written here.
        rounding: the logarithm of how many times larger masses may be.
    """

    width: float
    first: int
    masses: NDArray[np.float64]
    certain: float
    slack: float = 0.0
    rounding: float = 0.0

    @property
    def last(self) -> int:
        """The last point with a mass."""
        return self.first + len(self.masses) - 1

    def delta(self, epsilon: float) -> float:
        """The least delta for an epsilon, rounded up."""
        ends = abs(self.first) + abs(self.last)
        reached = epsilon - self.slack - rounding.FUNCTION * (abs(epsilon) + ends * self.width)
        start = max(0, math.floor(reached / self.width) - self.first)
        losses = self.width * np.arange(self.first + start, self.last + 1)
        parts = -np.expm1(np.minimum(reached - losses, 0.0))
        lost = rounding.of_sum(len(losses) + 2) + 2 * rounding.FUNCTION + self.rounding
        return min(1.0, (self.certain + float(parts @ self.masses[start:])) * math.exp(lost))

    def epsilon(self, delta: float) -> float:
        """The least epsilon from 0 up for a delta, rounded up; infinite where there is none."""
        high = (max(self.last, 0) + 1) * self.width + 2 * self.slack
        high *= 1 + 64 * rounding.UNIT
        if self.delta(high) > delta:
            return math.inf
        return least_real(lambda epsilon: self.delta(epsilon) <= delta, 0.0, high)

    def composed_with(self, other: LossDistribution, truncated: float = 0.0) -> LossDistribution:
        """Of two independent outcomes, the grids of which are `width` times a power of two.

        Args:
            other: the second one.
            truncated: mass on either side that may be cut off: above it counts as certain loss,
                below it gets the least loss that is kept.
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
        """With every second point of the grid: the mass of the others goes up and down.

        >>> masses = LossDistribution(0.1, 1, np.array([1.0]), 0.0).coarser().masses
        >>> masses.round(3).tolist()  # half a mass of loss 0 and half of loss 0.2, or nearly
        [0.475, 0.525]
        """
        padded = np.pad(self.masses, (self.first % 2, (self.last + 1) % 2))
        kept, split = padded[::2], padded[1::2]
        # Such that Q is split in proportion to e^-loss as well. From 1/2 up, 1 - up is exact.
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
    """The compositions of a distribution with itself; what they have in common is kept."""

    def __init__(self, single: LossDistribution, most: int) -> None:
        """Of up to `most` cells."""
        self._squares = [single]
        self._truncated = _TRUNCATION / most / _COMPOSITIONS

    def of(self, cells: int) -> LossDistribution:
        """Of so many cells, at least one of them."""
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


def on_grid(told: Losses, width: float) -> LossDistribution:
    """A distribution with its losses rounded to a grid.

    The losses are first made larger by all that the rounding of floating point may take away.
    """
    most = float(np.abs(told.losses).max(initial=0.0))
    losses = told.losses + told.slack + 4 * rounding.FUNCTION * (1 + most + width)
    below = np.floor(losses / width)
    points = below.astype(np.int64)
    # Mass P m goes up and P (1 - m) down, such that Q is split in proportion to e^-loss as well.
    over, under = losses - below * width, (below + 1) * width - losses
    down = np.clip(np.exp(-over) * np.expm1(-under) / math.expm1(-width), 0.0, 1.0)
    first = int(points.min())
    count = int(points.max()) - first + 2
    masses = np.zeros(count)
    masses[:-1] += np.bincount(points - first, told.masses * down, count - 1)
    masses[1:] += np.bincount(points - first, told.masses * (1 - down), count - 1)
    lost = rounding.of_sum(int(np.bincount(points - first).max())) + 4 * rounding.UNIT
    return LossDistribution(width, first, masses, told.certain, 0.0, told.rounding + lost)


def composed(kinds: Sequence[tuple[Losses, int]], width: float) -> LossDistribution:
    """The privacy loss distribution of independent outcomes of several kinds.

    Args:
        kinds: what an outcome of each gives away, and how many there are.
        width: of the grid of losses to begin with.
    """
    whole: LossDistribution | None = None
    for told, count in kinds:
        part = Powers(on_grid(told, width), count).of(count)
        whole = part if whole is None else whole.composed_with(part, _TRUNCATION / len(kinds))
    assert whole is not None
    return whole
