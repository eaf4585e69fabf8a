"""Integer tables of cumulative probabilities, for exact draws of dummy counts.

A table is computed in integers and only from the parameters, so it is bit-identical on every
device. A draw compares one uniform integer of 128 bits with the table, exactly. The table omits a
tail and is rounded. Its total variation distance from the intended distribution is known, and delta
must include it. For speed, the first 16 bits of a draw are looked up in a guide, which settles
nearly all draws. The next 48 bits settle nearly all others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

TABLE_BITS: Final = 128
"""Precision of a table, in bits: its probabilities are multiples of 2^-128."""

MAX_ENTRIES: Final = 1 << 20
"""Maximum number of entries of a table; creating a table of this size takes a second and 16 MB."""

_GUIDE_BITS = 16
_LEADING_BITS = 64
_REST_BITS = TABLE_BITS - _LEADING_BITS
# The mode has weight 2^192 during construction, and weights below 2^64 are omitted.
_MODE_BITS, _LEAST_BITS = 192, 64
# Binary places of logarithms, and a margin above their maximum error.
_LOGARITHM_BITS, _SLACK_BITS = 256, 64
# Entry of a guide for first bits that do not determine the count.
_UNSETTLED = -1

# Probability of a count, divided by that of the previous count: numerator and denominator.
_Ratio = Callable[[int], tuple[int, int]]


@dataclass(frozen=True, slots=True, eq=False)
class NoiseTable:
    """Distribution to draw from, on the counts `first`, `first` + 1, ...

    Attributes:
        bounds: For each count, 2^128 times the probability that a draw is at most that count.
        distance: Maximum total variation distance from the intended distribution.
    """

    first: int
    bounds: tuple[int, ...]
    distance: float
    _leading: NDArray[np.uint64] = field(init=False, repr=False)
    _guide: NDArray[np.int32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rising = all(low <= high for low, high in zip((0, *self.bounds), self.bounds, strict=False))
        if not self.bounds or not rising or self.bounds[-1] != 1 << TABLE_BITS:
            raise ValueError("invalid noise table; expected bounds that rise to 2^128")
        largest = (1 << _LEADING_BITS) - 1
        leading = np.array([min(b >> _REST_BITS, largest) for b in self.bounds], np.uint64)
        # A uniform integer that starts with g is settled if no bound starts with g too.
        begins = (leading >> np.uint64(_LEADING_BITS - _GUIDE_BITS)).astype(np.int64)
        groups = np.arange(1 << _GUIDE_BITS)
        guide = np.searchsorted(begins, groups).astype(np.int32)
        guide[begins[:-1]] = _UNSETTLED
        object.__setattr__(self, "_leading", leading)
        object.__setattr__(self, "_guide", guide)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        per_word = _LEADING_BITS // _GUIDE_BITS
        words = rng.integers(0, 1 << _LEADING_BITS, -(-count // per_word), dtype=np.uint64)
        begins = words.astype("<u8", copy=False).view("<u2")[:count]
        drawn: NDArray[np.int64] = self._guide[begins].astype(np.int64)
        unsettled = np.flatnonzero(drawn == _UNSETTLED)
        if len(unsettled):
            drawn[unsettled] = self._settled(begins[unsettled], rng)
        drawn += self.first
        return drawn

    def _settled(self, begins: NDArray[np.uint16], rng: np.random.Generator) -> NDArray[np.intp]:
        """Look up indices by the first 64 bits, or by all 128 if the first 64 are not enough."""
        more = rng.integers(0, 1 << _LEADING_BITS, len(begins), dtype=np.uint64)
        shift = np.uint64(_LEADING_BITS - _GUIDE_BITS)
        leading = begins.astype(np.uint64) << shift | more >> np.uint64(_GUIDE_BITS)
        drawn = np.searchsorted(self._leading[:-1], leading, side="right")
        open_ = np.flatnonzero((drawn > 0) & (self._leading[drawn - 1] == leading))
        for position in open_:
            rest = int(rng.integers(0, 1 << _REST_BITS, dtype=np.uint64))
            value = int(leading[position]) << _REST_BITS | rest
            drawn[position] = bisect_right(self.bounds, value)
        return drawn


def poisson_table(mean: float) -> NoiseTable:
    """Return the table of Poisson(mean), the number of one contributor's dummies in all cells.

    Raises `ValueError` if the mean is not positive, or so large that the table would be too long.
    For a larger mean, sum several independent draws: the sum is Poisson too.

    >>> table = poisson_table(1e-6)
    >>> table.first, len(table.bounds), table.distance < 1e-30
    (0, 6, True)
    """
    _check_positive("mean", mean)
    numerator, denominator = mean.as_integer_ratio()
    return _table(lambda count: (numerator, denominator * count), math.floor(mean))


def binomial_table(trials: int, probability: float | Fraction) -> NoiseTable:
    """Return the table of Binomial(trials, probability): the number of cells with a dummy.

    >>> [bound / 2**128 for bound in binomial_table(2, 0.5).bounds]
    [0.25, 0.75, 1.0]
    """
    if type(trials) is not int or trials < 1 or not 0 < probability < 1:
        raise ValueError(
            f"binomial noise has {trials!r} trials and probability {probability!r}; expected at "
            "least 1 trial, and a probability above 0 and below 1"
        )
    odds = Fraction(probability) / (1 - Fraction(probability))
    up, down = odds.numerator, odds.denominator
    return _table(
        lambda count: ((trials + 1 - count) * up, count * down),
        min(trials, math.floor((trials + 1) * probability)),
        last=trials,
    )


def logarithmic_table(failure: float) -> NoiseTable:
    """Return the table of cluster sizes: P(m) proportional to q^m / m, for m >= 1.

    >>> logarithmic_table(0.5).first
    1
    """
    if not 0 < failure < 1:
        raise ValueError(
            f"q of cluster sizes is {failure!r}; expected a number above 0 and below 1"
        )
    numerator, denominator = failure.as_integer_ratio()
    return _table(lambda count: (numerator * (count - 1), denominator * count), mode=1, least=1)


def discrete_laplace_table(decay: Fraction) -> NoiseTable:
    """Return the table of P(z) proportional to decay^|z|, for all integers z.

    >>> table = discrete_laplace_table(Fraction(1, 2))
    >>> middle = -table.first
    >>> round((table.bounds[middle] - table.bounds[middle - 1]) / 2**128, 6)
    0.333333
    """
    if not 0 < decay < 1:
        raise ValueError(
            f"decay of discrete Laplace noise is {decay!r}; expected a number above 0 and below 1"
        )
    down, up = decay.numerator, decay.denominator
    return _table(lambda z: (down, up) if z > 0 else (up, down), mode=0, least=None)


@dataclass(frozen=True, slots=True, eq=False)
class ClusterTables:
    clusters: NoiseTable
    sizes: NoiseTable

    def draw_clusters(
        self, count: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draw the clusters of `count` contributors.

        All dummies of a cluster go to one cell, drawn uniformly. Then the counts of the cells are
        independent and negative-binomial. Return the number of clusters per contributor, int64,
        shape (count,), and the sizes of all clusters, in order.
        """
        clusters = self.clusters.draw(count, rng)
        return clusters, self.sizes.draw(int(clusters.sum()), rng)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        clusters, sizes = self.draw_clusters(count, rng)
        ends = np.cumsum(clusters)
        totals = np.concatenate(([0], np.cumsum(sizes)))
        drawn: NDArray[np.int64] = totals[ends] - totals[ends - clusters]
        return drawn

    def distance(self, draws: int, most_clusters: int) -> float:
        return draws * self.clusters.distance + most_clusters * self.sizes.distance


def negative_binomial_tables(shape: float, mean: float) -> ClusterTables:
    """Return the tables of negative-binomial numbers with this shape (r) and mean.

    The number of clusters is Poisson with mean -r ln p, where p = r / (r + mean), rounded up: a
    little more noise is never less private. For a contributor's dummies in all cells, `shape` and
    `mean` are those of one cell, times the number of cells, divided by that of contributors.
    """
    _check_positive("shape", shape)
    _check_positive("mean", mean)
    clusters = poisson_table(cluster_rate(shape, mean))
    return ClusterTables(clusters, logarithmic_table(mean / (shape + mean)))


def cluster_rate(shape: float, mean: float, times: int = 1) -> float:
    """Return the mean number of clusters of negative-binomial draws: shape * ln(1 + mean / shape).

    It is computed in integers and rounded up to the same float on every machine, since logarithms
    of different libraries differ in their last digit. `times` is the number of draws.

    >>> cluster_rate(1.0, 1.0), cluster_rate(2.0, 6.0, times=10)
    (0.6931471805599454, 27.725887222397816)
    """
    (up, one), (added, other) = shape.as_integer_ratio(), mean.as_integer_ratio()
    below, above = up * other, up * other + added * one
    halvings = max(0, above.bit_length() - below.bit_length() - 1)
    logarithm = halvings * _logarithm(2, 1) + _logarithm(above, below << halvings)
    numerator = times * up * (logarithm + (1 << _SLACK_BITS))
    exact = Fraction(numerator, one << _LOGARITHM_BITS)
    nearest = float(exact)
    return nearest if nearest >= exact else math.nextafter(nearest, math.inf)


def _logarithm(above: int, below: int) -> int:
    """Return 2^256 ln(above / below), for ratios from 1 to 4; too small by at most a few thousand.

    The series is twice that of the inverse hyperbolic tangent of (above - below) / (above + below).
    """
    power = ((above - below) << _LOGARITHM_BITS) // (above + below)
    squared = power * power >> _LOGARITHM_BITS
    total, order = 0, 1
    while power:
        total += power // order
        power = power * squared >> _LOGARITHM_BITS
        order += 2
    return 2 * total


def _table(ratio: _Ratio, mode: int, least: int | None = 0, last: int | None = None) -> NoiseTable:
    """Return the table of a distribution given by ratios of probabilities, starting at its mode.

    Ratios must not increase. `least` and `last` are the outermost counts; None if unbounded. Raises
    `ValueError` if the table is too long.
    """
    below, below_tail = _ladder(lambda count: ratio(count)[::-1], mode, -1, least)
    above, above_tail = _ladder(lambda count: ratio(count + 1), mode, 1, last)
    weights = [*reversed(below), 1 << _MODE_BITS, *above]
    total = sum(weights)
    bounds = [(cumulated << TABLE_BITS) // total for cumulated in accumulate(weights)]
    # Each weight is rounded down by at most its distance from the mode, and each bound by 1.
    left_out = Fraction(below_tail + above_tail + len(weights) ** 2, total)
    distance = left_out + Fraction(len(weights), 1 << TABLE_BITS)
    return NoiseTable(mode - len(below), tuple(bounds), math.nextafter(float(distance), math.inf))


def _ladder(ratio: _Ratio, count: int, step: int, end: int | None) -> tuple[list[int], int]:
    """Return weights of counts on one side of the mode, and a bound on the omitted weight."""
    weights: list[int] = []
    weight = 1 << _MODE_BITS
    while count != end:
        numerator, denominator = ratio(count)
        following = weight * numerator // denominator
        if following >> _LEAST_BITS == 0:
            # Ratios do not increase, so a geometric series bounds the rest.
            return weights, (following + 1) * denominator // (denominator - numerator) + 1
        weight = following
        weights.append(weight)
        if len(weights) > MAX_ENTRIES:
            raise ValueError(
                f"a noise table exceeds {MAX_ENTRIES} entries. Sum smaller draws instead"
            )
        count += step
    return weights, 0


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"'{name}' is {value!r}; expected a positive finite number")
