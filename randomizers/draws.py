"""Exact draws of integers: every probability is a ratio of integers, without rounding."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

_WORD_BITS = 64


def random_bits(rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
    """Draw fair bits: uint8, shape (count,), 0 or 1; each consumes one random bit."""
    words = rng.integers(0, 1 << _WORD_BITS, -(-count // _WORD_BITS), dtype=np.uint64)
    return np.unpackbits(words.astype("<u8", copy=False).view(np.uint8), count=count)


def draw_categories(
    masses: Sequence[int], count: int, rng: np.random.Generator
) -> NDArray[np.intp]:
    """Draw indices, each with probability exactly ``masses[index] / sum(masses)``.

    A uniform integer with at least 64 bits more than the total is compared with the scaled
    cumulative masses, and redrawn if it exceeds all of them. `masses` are non-negative integers of
    any size, not all 0. The result has shape (count,).

    >>> from dpstream.randomizers.randomness import seeded_generator
    >>> draw_categories([0, 10**400, 0], 3, seeded_generator(1)).tolist()
    [1, 1, 1]
    """
    cumulated = list(accumulate(masses))
    lower_words = -(-cumulated[-1].bit_length() // _WORD_BITS)
    lower_bits = _WORD_BITS * lower_words
    scale = (1 << (lower_bits + _WORD_BITS)) // cumulated[-1]
    bounds = [scale * mass for mass in cumulated]
    largest = (1 << _WORD_BITS) - 1
    leading_bounds = np.array(
        [min(bound >> lower_bits, largest) for bound in bounds], dtype=np.uint64
    )
    leading = rng.integers(0, largest, count, dtype=np.uint64, endpoint=True)
    drawn = np.searchsorted(leading_bounds, leading, side="right")
    # Where the leading bits equal those of a bound, the value may be on either side of it. A value
    # above all bounds must be redrawn. Both are rare.
    unsettled = (drawn == len(bounds)) | (leading_bounds[drawn - 1] == leading)
    for position in np.flatnonzero(unsettled):
        value = int(leading[position])
        for _ in range(lower_words):
            value = value << _WORD_BITS | _word(rng)
        while value >= bounds[-1]:
            value = 0
            for _ in range(lower_words + 1):
                value = value << _WORD_BITS | _word(rng)
        drawn[position] = bisect_right(bounds, value)
    return drawn


def _word(rng: np.random.Generator) -> int:
    return int(rng.integers(0, 1 << _WORD_BITS, dtype=np.uint64))
