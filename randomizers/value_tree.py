"""How accurate a tree of values is, for given variances of its levels' own estimates.

The values are 2^L buckets. Level l of the tree cuts them up into 2^l nodes, each of 2^(L-l)
neighbouring buckets; level 0, the root, is everybody and is known. Reports give an independent
estimate of every node from level 1 on, with one variance for each level. Weighted least squares
makes the best of all of them together, and its covariance is known in closed form: it is diagonal
in the Haar wavelets. The wavelet of a node of level l is constant and positive on one of its halves
and negative on the other, so that level m > l tells 2^(L-m) / V_m of it, the other levels nothing,
and its variance is 1 / sum over m > l of 2^(L-m) / V_m. A range of buckets meets at most two nodes
of a level in part, those that its ends lie in; all others it meets in a multiple of the constant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def range_variances(
    level_variances: NDArray[np.float64],
    starts: NDArray[np.integer] | int,
    ends: NDArray[np.integer] | int,
) -> NDArray[np.float64]:
    """Variance of the number of users whose bucket lies in [start, end), by least squares.

    Args:
        level_variances: of a node's own estimate, for the levels 1 to L; shape (L,), or (L, n) for
            n trees of different accuracy.
        starts: the first bucket, from 0 on; a number, or shape (n,).
        ends: the first bucket that is not in the range, up to 2^L; likewise.

    Returns:
        float64, of the shape that all of them have together.

    >>> range_variances(np.array([1.0]), 0, np.array([0, 1, 2])).tolist()  # 1 - the other half
    [0.0, 0.5, 0.0]
    """
    starts, ends = np.asarray(starts), np.asarray(ends)
    precision, result = np.float64(0.0), np.zeros(np.broadcast(starts, ends).shape)
    for height, variance in enumerate(level_variances[::-1], start=1):
        support = 1 << height
        with np.errstate(divide="ignore"):
            precision = precision + np.divide(support / 2, variance)
        start, end = half_difference(starts, support), half_difference(ends, support)
        same = starts // support == ends // support
        energy = np.where(same, np.square(end - start), np.square(start) + np.square(end))
        result = result + energy / support / precision
    return np.asarray(result, np.float64)


def half_difference(ends: NDArray[np.integer], support: int) -> NDArray[np.float64]:
    """Of the buckets of a node before an end, those in its left half less those in its right one.

    >>> half_difference(np.arange(9), 4).tolist()
    [0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]

    Args:
        ends: numbers of buckets before each end, from 0 on.
        support: buckets of a node, a power of two.
    """
    half = support / 2
    overlap: NDArray[np.float64] = half - np.abs(ends % support - half)
    return overlap
