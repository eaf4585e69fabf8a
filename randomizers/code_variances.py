"""Variances of range counts when every cell of a code has its own noise.

Levels of a tree are combined by weighted least squares. The covariance is diagonal in the
generalized Haar basis. Level l and all deeper levels observe the difference between the children of
a node of level l - 1. A level whose nodes have width w and variance V contributes a precision of
w / V to this difference.

For a range, let e_l be the sum over the nodes of level l of (values in the range)^2 / width. The
variance is the sum over l of (e_l - e_(l-1)) / (sum over m >= l of w_m / V_m). With
`cell_codes.kept_nodes`, in contrast, only one signed sum of nodes equals a range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.grid import AxisCode
from dpstream.randomizers.cell_codes.levels import Levels

Ends = NDArray[np.int64] | int

_RANGES = 1024
# Steps of an additive recurrence that fills the unit square evenly (from the plastic number).
_STEPS = np.array([0.7548776662466927, 0.5698402909980532])


def range_variances(code: AxisCode, starts: Ends, ends: Ends) -> NDArray[np.float64]:
    """Return the variance of the number of values in [start, end), for cell variance 1.

    `starts` are numbered from 0. `ends` are exclusive, and not below the starts.

    >>> range_variances(Levels(4, (4,)), 0, np.array([1, 4])).tolist()  # [0, 1) and [0, 4)
    [0.8, 0.8]
    """
    if isinstance(code, Levels):
        return level_range_variances(code, [1.0] * code.messages, starts, ends)
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    # The two prefix sums share the nodes of all bits above the highest differing bit.
    different = starts ^ ends
    for shift in (1, 2, 4, 8, 16, 32):
        different = different | different >> shift
    nodes = np.bitwise_count(starts & different) + np.bitwise_count(ends & different)
    return np.asarray(nodes, np.float64)


def level_range_variances(
    levels: Levels, variances: Sequence[float], starts: Ends, ends: Ends
) -> NDArray[np.float64]:
    """Return range variances when each level has a cell variance of its own.

    `variances` are the cell variances of the levels, from the root down. All are positive; that of
    an unused level is infinite. The lowest level must be used.
    """
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    precisions = np.cumsum(np.divide(levels.widths, variances)[::-1])[::-1]
    result = np.zeros(np.broadcast(starts, ends).shape)
    above = np.zeros_like(result)
    for width, precision in zip(levels.widths, precisions, strict=True):
        energy = _energy(starts, ends, width)
        result += (energy - above) / precision
        above = energy
    return result


def equal_variances(levels: Levels, variance: float = 1.0, *, rooted: bool) -> list[float]:
    """Return the same cell variance for each level; infinite for the root unless `rooted`."""
    return [variance if rooted else math.inf, *[variance] * len(levels.branching)]


def mean_deviation(levels: Levels, variances: Sequence[float]) -> float:
    found = level_range_variances(levels, variances, *random_ranges(levels.size))
    return float(np.sqrt(found).mean())


def random_ranges(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ranges within `size` values, spread evenly over all ranges."""
    ends = np.sort(np.outer(np.arange(1, _RANGES + 1), _STEPS) % 1 * (size + 1), axis=1)
    starts, ends = ends.astype(np.int64).T
    some = starts < ends
    return starts[some], ends[some]


def _energy(starts: NDArray[np.int64], ends: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    first, before = np.divmod(starts, width)
    last, after = np.divmod(ends, width)
    several = ((width - before) ** 2 + after**2) / width + (last - first - 1) * width
    return np.where(first == last, (ends - starts) ** 2 / width, several)
