"""Find the trees over ordered values that answer range and box queries most accurately.

With more levels, ranges are sums of fewer cells, but every cell needs more noise. In a candidate
tree all nodes have the same number of children, with two exceptions: the root has as many as
needed, and the parents of leaves can have fewer. The search tries the best tree of every depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np

from dpstream.randomizers.cell_codes.grid import AxisCode, Grid
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.code_variances import random_ranges, range_variances

MOST_CHILDREN = 64
"""Maximum number of children of a root; other nodes have at most half as many."""


def mean_deviation(axis: AxisCode) -> float:
    """Return the mean standard deviation of counts in random ranges, for a cell variance of 1."""
    return float(np.sqrt(range_variances(axis, *random_ranges(axis.size))).mean())


def best_grid(
    sizes: Sequence[int],
    noise_mean: Callable[[int, int], float],
    affordable: Callable[[Grid, float], bool] = lambda grid, mean: True,
) -> Grid:
    """Return the grid whose levels have the least error for random boxes under Poisson noise.

    `noise_mean` returns the mean noise of a cell, given a code's number of messages per item and
    how many of these all items share. `affordable` returns whether a grid is allowed, given the
    mean noise of its cells. Raises `ValueError` if no grid is allowed, or an axis has one value.

    >>> from dpstream.randomizers.accounting.shuffled_oracles import poisson_for_code
    >>> best_levels(1024, lambda *shape: poisson_for_code(1.0, 1e-6, *shape).mean)
    Levels(size=1024, branching=(7, 3, 3, 3, 3, 2))
    """
    shapes = {size: best_shapes(size) for size in set(sizes)}
    noise = cache(noise_mean)
    best, least = None, math.inf
    for choice in product(*(shapes[size] for size in sizes)):
        grid = Grid(tuple(levels for levels, _ in choice))
        mean = noise(grid.messages, grid.shared)
        error = mean * math.prod(deviation for _, deviation in choice) ** 2
        if error < least and affordable(grid, mean):
            best, least = grid, error
    if best is None:
        raise ValueError(
            f"no tree over {' x '.join(map(str, sizes))} values fits the message limit. Raise "
            "'messages_per_user', epsilon or the minimum number of devices, or use fewer values"
        )
    return best


def best_levels(
    size: int,
    noise_mean: Callable[[int, int], float],
    affordable: Callable[[Grid, float], bool] = lambda grid, mean: True,
) -> Levels:
    """Return the levels that `best_grid` chooses for a single axis."""
    (levels,) = best_grid([size], noise_mean, affordable).axes
    assert isinstance(levels, Levels)
    return levels


def best_shapes(
    size: int, deviation_of: Callable[[Levels], float] = mean_deviation
) -> list[tuple[Levels, float]]:
    """Return, for every number of levels, the most accurate tree and its standard deviation."""
    if size < 2:
        raise ValueError(f"an axis has {size} values; expected at least 2")
    best: dict[int, tuple[Levels, float]] = {}
    for branching in set(_branchings(size)):
        levels = Levels(size, branching)
        deviation = deviation_of(levels)
        if levels.messages not in best or deviation < best[levels.messages][1]:
            best[levels.messages] = levels, deviation
    return [best[messages] for messages in sorted(best)]


def _branchings(size: int) -> Iterator[tuple[int, ...]]:
    if size <= MOST_CHILDREN:
        yield (size,)
    for children in range(2, MOST_CHILDREN // 2 + 1):
        for lowest in range(2, children + 1):
            below: tuple[int, ...] = (lowest,)
            while (top := math.ceil(size / math.prod(below))) >= 2:
                if top <= MOST_CHILDREN:
                    yield (top, *below)
                below = (children, *below)
