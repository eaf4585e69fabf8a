"""Delete random messages from every crowd, in the shuffler.

The result depends only on the messages and on a generator derived from the noise key, the
deployment and the epoch. If any worker writes a window again, the window is therefore the same.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.crowds import CrowdCounts, CrowdsLaw
from dpstream.randomizers.noise_tables import NoiseTable, discrete_laplace_table
from dpstream.topics.messages import Messages


def left_of_crowds(law: CrowdsLaw, words: Messages, generator: np.random.Generator) -> Messages:
    """Return the messages that remain after deletion, in crowds that are still large enough.

    First, the number of messages to leave is drawn for every crowd, even an empty one. This number
    therefore does not depend on other crowds. Messages without a crowd are deleted.

    `words` has all messages of a window, in canonical order. The result is a subset in the same
    order.
    """
    crowds = law.crowds_of(words.values)
    counts = np.ones(words.rows, np.int64) if words.counts is None else words.counts
    kept = counts.astype(np.int64)
    ends = np.searchsorted(crowds, np.arange(law.crowds + 1), side="right")
    kept[: ends[0]] = 0
    bounds = list(pairwise(ends.tolist()))
    sizes = np.array([kept[first:end].sum() for first, end in bounds], np.int64)
    sizes_left = numbers_left(law.counts, sizes, generator)
    for (first, end), size, remaining in zip(
        bounds, sizes.tolist(), sizes_left.tolist(), strict=True
    ):
        if remaining < law.minimum:
            kept[first:end] = 0
        else:
            kept[first:end] -= uniform_choice(kept[first:end], size - remaining, generator)
    rows = kept > 0
    values = words.values[rows]
    if words.counts is None:
        return Messages(values)
    return Messages(values, kept[rows].astype(words.counts.dtype))


def numbers_left(
    counts: CrowdCounts, sizes: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the number of messages to leave in each crowd: int64, with the shape of `sizes`."""
    drawn = noise_table(counts).draw(len(sizes), generator)
    left: NDArray[np.int64] = np.clip(sizes + drawn - counts.shift, 0, sizes)
    return left


@lru_cache(maxsize=16)
def noise_table(counts: CrowdCounts) -> NoiseTable:
    return discrete_laplace_table(counts.ratio)


def uniform_choice(
    counts: NDArray[np.int64], chosen: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw a sample without replacement, and return how many elements of each kind it has.

    Every set of size `chosen` is equally likely. `counts` has the number of elements of each kind.
    Positions are drawn one by one for the smaller set: the chosen or the remaining elements.

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> uniform_choice(np.array([5, 0, 1]), 6, seeded_generator(1)).tolist()
    [5, 0, 1]

    Reference: Bentley and Floyd, *A Sample of Brilliance*, 1987 (Floyd's algorithm).
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    if chosen > total - chosen:
        return counts - uniform_choice(counts, total - chosen, generator)
    places: set[int] = set()
    for last in range(total - chosen, total):
        place = int(generator.integers(0, last, endpoint=True))
        places.add(last if place in places else place)
    kinds = np.searchsorted(ends, np.array(sorted(places), np.int64), side="right")
    chosen_counts: NDArray[np.int64] = np.bincount(kinds, minlength=len(counts)).astype(np.int64)
    return chosen_counts
