"""Error of random box queries."""

from __future__ import annotations

import math

from dpstream.randomizers.accounting.best_grid import mean_deviation
from dpstream.randomizers.cell_codes.grid import Grid


def box_error(grid: Grid, noise_variance: float) -> float:
    """Return the mean absolute error of a random box or range, with Gaussian noise in every cell.

    >>> from dpstream.randomizers.cell_codes.levels import Levels
    >>> round(box_error(Grid((Levels(1024, (4, 4, 4, 4, 4)),)), noise_variance=180.3), 1)
    20.9
    """
    deviations = math.prod(mean_deviation(axis) for axis in grid.axes)
    return math.sqrt(2 / math.pi * noise_variance) * deviations
