"""Variances of range counts in a tree of values, given the variances of its levels' estimates.

The values are 2^L buckets. Level l divides them into 2^l nodes, each of 2^(L-l) neighboring
buckets. Level 0, the root, contains all users and is known. Reports give an independent estimate of
every node from level 1 on, with one variance for each level. Weighted least squares combines all of
them optimally. Its covariance is known in closed form: it is diagonal in the Haar wavelets.

The wavelet of a node of level l is constant and positive on one half and negative on the other. So
its coefficient is measured by every level m > l with precision 2^(L-m) / V_m, and by no other
level. Its variance is 1 / sum over m > l of 2^(L-m) / V_m. A range of buckets partly overlaps at
most two nodes of a level, those that contain its ends. On every other node the range's indicator is
constant, and so orthogonal to the wavelet.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def range_variances(
    level_variances: NDArray[np.float64],
    starts: NDArray[np.integer] | int,
    ends: NDArray[np.integer] | int,
) -> NDArray[np.float64]:
    """Return the variance of the number of users in buckets [start, end), by least squares.

    `level_variances` are those of a node's own estimate, for levels 1 to L; shape (L,), or (L, n)
    for n trees. `starts` are numbered from 0; `ends` are exclusive, at most 2^L; both are integers
    or have shape (n,). The result is float64, with all shapes broadcast.

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


def widest_range(level_variances: NDArray[np.float64]) -> float:
    """Return an upper bound on a range's standard error relative to a bucket's; shape (L,).

    The variance for a range is at most the sum of the variances for two ranges, from 0 to the start
    and from 0 to the end: their coefficients have the same sign in the wavelet of each node.
    """
    cumulative = range_variances(level_variances, 0, np.arange(2 ** len(level_variances) + 1))
    bucket = float(range_variances(level_variances, 0, 1))
    return math.sqrt(2 * float(cumulative.max()) / bucket)


def half_difference(ends: NDArray[np.integer], support: int) -> NDArray[np.float64]:
    """Return how many more left-half than right-half buckets of a node precede each end.

    A node has `support` buckets, a power of two. `ends` counts buckets from 0.

    >>> half_difference(np.arange(9), 4).tolist()
    [0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]
    """
    half = support / 2
    overlap: NDArray[np.float64] = half - np.abs(ends % support - half)
    return overlap
