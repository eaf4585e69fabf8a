"""Plan the levels of a prefix search: their number, prefix lengths and cell counts.

More levels mean more messages and more noise in every cell, since a user reports on each level.
Fewer levels mean more bits between levels, so there are more candidates, and more of them share a
cell with a heavy item by chance. The planner predicts the accuracy of all plans within the message
limit and chooses the best.

The prediction assumes that items are random numbers and that their counts follow Zipf's law. With
nearly equal counts the search finds fewer items, and reports this for each window. A plan finds
items of a given count under three conditions. On each level the count stands out from the noise and
from smaller items. True and false candidates together are few enough to be extended. On the last
level almost no item is confused with another item of nearly the same count.
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
"""Maximum number of prefixes extended per level; sized for a search for 32 items."""
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
    """Skew of item counts, as classes of items with equal counts.

    Attributes:
        shares: float64, decreasing; for each class, an item's fraction of all users' items.
        items: float64; number of items in each class.
    """

    shares: Array
    items: Array

    @classmethod
    def zipf(cls, exponent: float, items: int) -> Self:
        """Return the skew with shares proportional to rank^-exponent; high ranks are merged.

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
        """Return, for each given share, the number of items with a larger share; same shape."""
        totals = np.concatenate([[0.0], np.cumsum(self.items)])
        return np.asarray(totals[np.searchsorted(-self.shares, -share)], np.float64)

    def squares_below(self, share: Array) -> Array:
        """Return, for each given share, the sum of the squares of all shares up to it."""
        squares = self.items * self.shares**2
        totals = np.concatenate([np.cumsum(squares[::-1])[::-1], [0.0]])
        return np.asarray(totals[np.searchsorted(-self.shares, -share)], np.float64)


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """Levels of a prefix search and their predicted accuracy.

    Attributes:
        noise_mean: Mean lambda of each cell's Poisson noise, with the minimum contributor count.
        messages_per_user: Number of real and dummy messages, with the minimum contributor count.
        smallest_found: Least count of an item that the search finds if counts follow Zipf's law.
        standard_error: Predicted standard error of the estimate of such an item.
    """

    levels: tuple[PrefixLevel, ...]
    noise_mean: float
    messages_per_user: float
    smallest_found: float
    standard_error: float


def plan_prefixes(
    bits: int,
    contributors: int,
    epsilon: float,
    delta: float,
    messages_per_user: float,
    items: int = 1,
    minimum: int | None = None,
) -> PrefixPlan:
    """Return the plan that finds items with the smallest counts.

    `epsilon` and `delta` are for one epoch. `messages_per_user` limits the total of real and dummy
    messages. A user has at most `items` (k) items. Noise is sized for `minimum` contributors, or
    for the expected `contributors` if `minimum` is None. Raises `ValueError` if no plan finds
    items.

    >>> plan = plan_prefixes(24, 1_000_000, 1.0, 1e-6, messages_per_user=6.5)
    >>> len(plan.levels), plan.messages_per_user <= 6.5
    (3, True)
    """
    minimum = contributors if minimum is None else minimum
    if not 1 <= minimum <= contributors:
        raise ValueError(f"'minimum' is {minimum}; expected 1 to {contributors} contributors")
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
        # Each level adds noise to all levels: if this one does not pay off, no further level does.
        if best is not None and better is best:
            break
        best = better
    if best is None:
        raise ValueError(
            f"no {bits}-bit items can be found with {messages_per_user:g} messages per user and "
            f"{minimum:,} contributors. Raise 'messages_per_user', epsilon or 'minimum'"
        )
    return best


def _cells(levels: tuple[PrefixLevel, ...]) -> int:
    return sum(level.buckets for level in levels)


def _merit(plan: PrefixPlan) -> tuple[float, float]:
    return plan.smallest_found, plan.standard_error


def _arrangements(bits: int, count: int, cells: int) -> Iterator[tuple[PrefixLevel, ...]]:
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
    """Yield tuples of increasing lengths: a first length, nearly equal steps, and a last step."""
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
    """Return the least count found on these levels, and its standard error; None if none is found.

    `variance` is the variance of a cell's noise with the expected number of `contributors`. By
    default, `skew` is Zipf's law with exponent 1.1.
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
        # On a direct last level, each cell belongs to a single item.
        shares = 0.0 if level.direct and level is levels[-1] else 1.0 / level.buckets
        deviation = np.sqrt(variance + smaller * shares)
        light = survivors * children * ndtr(_CUT_BELOW - counts / deviation)
        shared = survivors * children * heavy * shares
        found &= survivors * children <= _MOST_CANDIDATES
        survivors = np.minimum(survivors * children, heavy + light + shared)
        found &= survivors <= DEFAULT_WIDTH
        # False candidates in the cells of the item or of other items with nearly the same count.
        lowest, highest = counts - deviation / 2, counts + deviation / 2
        alike = skew.above(lowest / held) - skew.above(highest / held)
        false_children = (1 + twins) * children * (1 + alike) * shares
        twins = alike if level.direct and level is not levels[-1] else false_children
        length = level.length
    found &= (twins <= _TWINS) & (light <= _MISTAKEN * (heavy + 1))
    # Items of this count and of all larger ones are found.
    every = np.flatnonzero(np.logical_and.accumulate(found[::-1])[::-1])
    return (float(counts[every[0]]), float(deviation[every[0]])) if len(every) else None
