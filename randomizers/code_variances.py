"""How accurate ranges are when every cell of a code has noise of its own.

For levels of a tree, by weighted least squares. Its covariance is diagonal in the generalised Haar
basis: what tells the children of a node of level l - 1 apart is seen by the levels from l on, by a
node of width w and variance V with precision w / V for each of its values. So if r is the indicator
of a range and |P_l r|^2 the sum over the nodes of level l of (values in the range)^2 / width, the
variance is the sum over l of (|P_l r|^2 - |P_(l-1) r|^2) / (sum over m >= l of w_m / V_m).

For kept nodes there is no choice: a range is the only signed sum of nodes that there is for it.
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
# The additive recurrence that fills the unit square most evenly (plastic number).
_STEPS = np.array([0.7548776662466927, 0.5698402909980532])


def range_variances(code: AxisCode, starts: Ends, ends: Ends) -> NDArray[np.float64]:
    """Variance of the number of values in [start, end), for cells with noise of variance 1.

    Args:
        code: of the values.
        starts: the first value, from 0 on; a number, or an array.
        ends: the first value that is not in the range, at least the start; likewise.

    Returns:
        float64, of the shape that both have together.

    >>> range_variances(Levels(4, (4,)), 0, np.array([1, 4])).tolist()  # with the root, and alone
    [0.8, 0.8]
    """
    if isinstance(code, Levels):
        return level_range_variances(code, [1.0] * code.messages, starts, ends)
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    # Both prefixes end with the same nodes: those of the bits above the highest one that differs.
    different = starts ^ ends
    for shift in (1, 2, 4, 8, 16, 32):
        different = different | different >> shift
    nodes = np.bitwise_count(starts & different) + np.bitwise_count(ends & different)
    return np.asarray(nodes, np.float64)


def level_range_variances(
    levels: Levels, variances: Sequence[float], starts: Ends, ends: Ends
) -> NDArray[np.float64]:
    """As `range_variances`, for levels whose cells are not all equally accurate.

    Args:
        levels: the tree.
        variances: of the cells of each level from the root down; above 0, infinite for a level
            that is not used, which the lowest one must not be.
        starts: the first value, from 0 on; a number, or an array.
        ends: the first value that is not in the range, at least the start; likewise.
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
    """Of a cell on each level from the root down, all alike but for a root that is not used."""
    return [variance if rooted else math.inf, *[variance] * len(levels.branching)]


def mean_deviation(levels: Levels, variances: Sequence[float]) -> float:
    """Mean standard deviation of a random range, for levels with these variances of a cell."""
    found = level_range_variances(levels, variances, *random_ranges(levels.size))
    return float(np.sqrt(found).mean())


def random_ranges(size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends of ranges of so many values, spread evenly over all that there are."""
    ends = np.sort(np.outer(np.arange(1, _RANGES + 1), _STEPS) % 1 * (size + 1), axis=1)
    starts, ends = ends.astype(np.int64).T
    some = starts < ends
    return starts[some], ends[some]


def _energy(starts: NDArray[np.int64], ends: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    """Sum over the nodes of a level of (values in the range)^2 / width."""
    first, before = np.divmod(starts, width)
    last, after = np.divmod(ends, width)
    several = ((width - before) ** 2 + after**2) / width + (last - first - 1) * width
    return np.where(first == last, (ends - starts) ** 2 / width, several)
