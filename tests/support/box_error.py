"""How far off random boxes are."""

from __future__ import annotations

import math

from dpstream.randomizers.accounting.best_grid import mean_deviation
from dpstream.randomizers.cell_codes.grid import Grid


def box_error(grid: Grid, noise_variance: float) -> float:
    """Mean absolute error of a random box, or of a random range where there is one axis.

    Args:
        grid: with independent random ranges on its axes.
        noise_variance: of every cell; the noise is taken to be normal.

    >>> from dpstream.randomizers.cell_codes.levels import Levels
    >>> round(box_error(Grid((Levels(1024, (4, 4, 4, 4, 4)),)), noise_variance=180.3), 1)
    20.9
    """
    deviations = math.prod(mean_deviation(axis) for axis in grid.axes)
    return math.sqrt(2 / math.pi * noise_variance) * deviations
