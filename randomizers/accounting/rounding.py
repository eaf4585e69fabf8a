"""Bounds on floating-point errors, in the notation of Higham's "Accuracy and Stability".

The result of each arithmetic operation has a relative error of at most u. Logarithms and
exponentials of numpy and of the platform are off by less than four units in the last place.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

UNIT: Final = 2.0**-53
"""Unit roundoff u: half the distance from 1 to the next larger float64."""
FUNCTION: Final = 8 * UNIT
"""Bound on the relative error of a logarithm or an exponential."""


def of_sum(terms: int) -> float:
    """Bound the relative error of a sum of positive terms or products, added in any order.

    >>> of_sum(1000) < 1.2e-13
    True
    """
    return 1.01 * (terms + 1) * UNIT


def running_sums(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of the first 1, 2, 3, ... terms, computed as a tree of pairs.

    The errors of millions of successive additions would accumulate. Here each term passes through
    at most ``additions(len(terms))`` additions.

    >>> running_sums(np.arange(5.0)).tolist()
    [0.0, 1.0, 3.0, 6.0, 10.0]
    """
    if len(terms) < 2:
        return terms.copy()
    sums = np.empty_like(terms)
    sums[1::2] = running_sums(terms[:-1:2] + terms[1::2])
    sums[0] = terms[0]
    sums[2::2] = sums[1:-1:2] + terms[2::2]
    return sums


def additions(terms: int) -> int:
    """Return the maximum number of additions that a term of `running_sums` passes through."""
    return 2 * max(1, terms).bit_length()


def window_sums(terms: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the sums of all windows of `length` consecutive terms; there must be at least one.

    >>> window_sums(np.arange(6.0), 3).tolist()
    [3.0, 6.0, 9.0, 12.0]
    """
    count = len(terms) - length + 1
    sums, start, block = np.zeros(count), 0, terms
    size = 1
    while start < length:
        if length & size:
            sums = sums + block[start : start + count]
            start += size
        block = block[:-size] + block[size:]
        size *= 2
    return sums
