"""Which levels a prefix search needs: how many, of which lengths, with how many cells each.

More levels mean more messages and more noise in every cell, since a user is seen on each; fewer
levels mean more bits between them, so more candidates, and more that share a cell with a heavy item
by chance. What is best is found by trying: all plans within the messages are predicted at once.

The prediction takes items to lie at random among the numbers, and their counts to follow Zipf's
law: of nearly equal ones fewer are found, as the search says of each window. A plan finds items of
a count if on each level the count stands out from noise and smaller items, true and false
candidates together are few enough to be extended, and on the last level hardly any item is mistaken
for another one of nearly the same count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_rows
from dpstream.randomizers.cell_codes.prefixes import FEWEST_HASHED, PrefixLevel
from dpstream.randomizers.pairwise_hash import MOST_BUCKETS

DEFAULT_EXPONENT: Final = 1.1
DEFAULT_WIDTH: Final = 512
"""How many prefixes of a level are extended: as a search for 32 items does by default."""

_MOST_LEVELS: Final = 12
_MOST_FIRST_BITS: Final = 20
_MOST_EXTENSION: Final = 14
_MOST_CANDIDATES: Final = 1 << 22
_LAST_WEIGHTS: Final = (1.0, 2.0)
_FIRST_SHARE: Final = 0.75
_CUT_BELOW: Final = 2.0
_MISTAKEN: Final = 0.05
_TWINS: Final = 0.2
_COUNTS: Final = 128
_EXACT_RANKS: Final = 4096

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """How unequal the counts of items are: classes of items that are held equally often.

    Attributes:
        shares: of an item of each class in all that users hold, float64, decreasing.
        items: how many there are of each class, float64.
    """

    shares: Array
    items: Array

    @classmethod
    def zipf(cls, exponent: float, items: int) -> Self:
        """Shares proportional to rank^-exponent; many ranks together where they are nearly equal.

        >>> skew = Skew.zipf(1.1, 1 << 24)
        >>> round(float(skew.shares[31]) * 1e6)
        2543
        """
        exact = min(items, _EXACT_RANKS)
        edges = np.unique(np.geomspace(exact, items, 1024).astype(np.int64)).astype(np.float64)
        ranks = np.concatenate([np.arange(1.0, exact + 1), (edges[1:] + edges[:-1] + 1) / 2])
        many = np.concatenate([np.ones(exact), np.diff(edges)])
        weights = ranks**-exponent
        return cls(weights / float(weights @ many), many)

    def above(self, share: Array) -> Array:
        """How many items have more than this share, same shape."""
        totals = np.concatenate([[0.0], np.cumsum(self.items)])
        return np.asarray(totals[np.searchsorted(-self.shares, -share)], np.float64)

    def squares_below(self, share: Array) -> Array:
        """The sum of the squares of the shares of all others, same shape."""
        squares = self.items * self.shares**2
        totals = np.concatenate([np.cumsum(squares[::-1])[::-1], [0.0]])
        return np.asarray(totals[np.searchsorted(-self.shares, -share)], np.float64)


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """Levels, and what they promise.

    Attributes:
        levels: of the code.
        noise_mean: lambda, of the Poisson noise of every cell, with the fewest contributors.
        messages_per_user: real ones and dummies, with the fewest contributors.
        smallest_found: the least count of an item that is found, if counts follow Zipf's law.
        standard_deviation: of the estimate of such an item, as predicted.
    """

    levels: tuple[PrefixLevel, ...]
    noise_mean: float
    messages_per_user: float
    smallest_found: float
    standard_deviation: float


def plan_prefixes(
    bits: int,
    contributors: int,
    epsilon: float,
    delta: float,
    messages_per_user: float,
    items: int = 1,
    minimum: int | None = None,
) -> PrefixPlan:
    """The levels that find the smallest counts.

    Args:
        bits: of the items.
        contributors: expected.
        epsilon: of an epoch.
        delta: of an epoch.
        messages_per_user: at most, real ones and dummies.
        items: k, the most that a user holds.
        minimum: the fewest contributors, which the noise is sized on; those expected by default.

    Raises:
        ValueError: something is out of range, or nothing is found with so few messages.

    >>> plan = plan_prefixes(24, 1_000_000, 1.0, 1e-6, messages_per_user=6.5)
    >>> len(plan.levels), plan.messages_per_user <= 6.5
    (3, True)
    """
    minimum = contributors if minimum is None else minimum
    if not 1 <= minimum <= contributors:
        raise ValueError(f"minimum is {minimum}, must be from 1 to the {contributors} expected")
    skew = Skew.zipf(DEFAULT_EXPONENT, 1 << bits)
    best: PrefixPlan | None = None
    for count in range(1, min(bits, _MOST_LEVELS) + 1):
        room = (messages_per_user - items * count) * minimum
        if room <= 0:
            break
        noise = poisson_for_rows(epsilon, delta, rows=count, items=items).mean
        variance = noise * contributors / minimum
        plans = [
            PrefixPlan(levels, noise, items * count + noise * _cells(levels) / minimum, *found)
            for levels in _arrangements(bits, count, int(room / noise))
            if (found := predict(levels, contributors, variance, items, skew))
        ]
        better = min([*plans, best] if best else plans, key=_merit, default=None)
        # Each further level adds noise to all: once it does not pay, more of them do not either.
        if best is not None and better is best:
            break
        best = better
    if best is None:
        raise ValueError(
            f"no heavy item of {bits} bits can be found with {messages_per_user:g} messages a user "
            f"and {minimum:,} contributors: raise messages_per_user, epsilon or the minimum"
        )
    return best


def _cells(levels: tuple[PrefixLevel, ...]) -> int:
    return sum(level.buckets for level in levels)


def _merit(plan: PrefixPlan) -> tuple[float, float]:
    return plan.smallest_found, plan.standard_deviation


def _arrangements(bits: int, count: int, cells: int) -> Iterator[tuple[PrefixLevel, ...]]:
    """Levels of so many cells together, at most."""
    for lengths in _lengths(bits, count):
        first = 1 << lengths[0]
        direct = first <= cells * (1.0 if count == 1 else _FIRST_SHARE)
        for weight in _LAST_WEIGHTS if count > 1 else (1.0,):
            weights = [1.0] * (count - 1) + [weight]
            fixed = 0
            if direct:
                weights[0], fixed = 0.0, first
            total = sum(weights) or 1.0
            shares = [int((cells - fixed) * part / total) for part in weights]
            if direct:
                shares[0] = first
            buckets = [
                min(share, 1 << length, MOST_BUCKETS)
                for share, length in zip(shares, lengths, strict=True)
            ]
            if min(buckets) >= FEWEST_HASHED:
                yield tuple(map(PrefixLevel, lengths, buckets))


def _lengths(bits: int, count: int) -> Iterator[tuple[int, ...]]:
    """Increasing lengths: a first one, equal steps, and a last step."""
    if count == 1:
        if bits <= _MOST_FIRST_BITS:
            yield (bits,)
        return
    for first in range(1, min(_MOST_FIRST_BITS, bits - count + 1) + 1):
        for last in range(1, min(_MOST_EXTENSION, bits - first) + 1):
            middle = bits - first - last
            steps = count - 2
            if middle < steps or (middle > 0) != (steps > 0):
                continue
            parts = [(middle * (i + 1)) // steps - (middle * i) // steps for i in range(steps)]
            if max(parts, default=0) <= _MOST_EXTENSION:
                yield tuple(accumulate([first, *parts, last]))


def predict(
    levels: tuple[PrefixLevel, ...],
    contributors: int,
    variance: float,
    items: int = 1,
    skew: Skew | None = None,
) -> tuple[float, float] | None:
    """The least count that these levels find with such a skew, and the deviation of its estimate.

    Args:
        levels: of the code.
        contributors: expected.
        variance: of the noise of a cell, with so many contributors.
        items: k.
        skew: of the counts; Zipf's with exponent 1.1 by default.

    Returns:
        None where nothing is found.
    """
    skew = Skew.zipf(DEFAULT_EXPONENT, 1 << levels[-1].length) if skew is None else skew
    held = contributors * items
    counts = np.geomspace(1.0, contributors, _COUNTS)
    heavy = skew.above(counts / held)
    smaller = skew.squares_below(counts / held) * held**2
    found = np.ones(_COUNTS, np.bool_)
    survivors, twins, length = np.ones(_COUNTS), np.zeros(_COUNTS), 0
    deviation = np.full(_COUNTS, math.sqrt(variance))
    for level in levels:
        children = 2.0 ** (level.length - length)
        # Where every item has a cell of its own, nothing shares it.
        shares = 0.0 if level.direct and level is levels[-1] else 1.0 / level.buckets
        deviation = np.sqrt(variance + smaller * shares)
        light = survivors * children * ndtr(_CUT_BELOW - counts / deviation)
        shared = survivors * children * heavy * shares
        found &= survivors * children <= _MOST_CANDIDATES
        survivors = np.minimum(survivors * children, heavy + light + shared)
        found &= survivors <= DEFAULT_WIDTH
        # False candidates in cells of the item itself, or of others with nearly its count.
        lowest, highest = counts - deviation / 2, counts + deviation / 2
        alike = skew.above(lowest / held) - skew.above(highest / held)
        false_children = (1 + twins) * children * (1 + alike) * shares
        twins = alike if level.direct and level is not levels[-1] else false_children
        length = level.length
    found &= (twins <= _TWINS) & (light <= _MISTAKEN * (heavy + 1))
    # Of this count and of all larger ones.
    every = np.flatnonzero(np.logical_and.accumulate(found[::-1])[::-1])
    return (float(counts[every[0]]), float(deviation[every[0]])) if len(every) else None
