"""The least that the noise of a cell is taken to be, for estimates that are hardly ever too small.

A cell holds everybody who has an item, perhaps others, and noise. Less the mean of the noise it is
too small as often as too large. Less what the noise is hardly ever below, it is an upper bound:
"On the Power of Multiple Anonymous Messages" (section 4.2) takes off nothing, and is never too
small; what is taken off here makes up most of the noise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from dpstream.randomizers.cell_noise_law import CellNoiseLaw

if TYPE_CHECKING:
    from scipy import stats

_MOST_COMPUTED: Final = 1e8
"""Noise with a larger mean is bounded, and not computed."""

_ROUNDING: Final = 1e-6
"""By so large a share of itself a probability that is computed is taken to be too small."""


def least_noise(noise: CellNoiseLaw, contributors: int, below: float) -> int:
    """The largest number of dummies that a cell has fewer of with probability `below` at most.

    >>> least_noise(CellNoiseLaw("poisson", mean=43.0, minimum=1000), 1000, 0.001)
    24

    Args:
        noise: of a cell.
        contributors: how many there are, all of whom add their dummies.
        below: a probability.
    """
    mean, variance = noise.moments(contributors)
    if mean > _MOST_COMPUTED:
        # Chernoff: a sum of numbers that are not negative has the lower tail of a normal one.
        return int(mean - math.sqrt(2 * max(mean, variance) * math.log(1 / below)))
    return max(0, int(_law(noise, contributors).ppf(below * (1 - _ROUNDING))))


def allowance(noise: CellNoiseLaw, contributors: int, rows: int, underestimated: float) -> float:
    """What is added to the smallest of an item's cells, each less its mean noise.

    The estimate is too small only if some row's noise is below what it is taken to be at least.

    Args:
        noise: of a cell.
        contributors: how many there are.
        rows: cells of an item.
        underestimated: the most that the probability of too small an estimate may be.
    """
    mean, _ = noise.moments(contributors)
    return mean - least_noise(noise, contributors, underestimated / rows)


def _law(noise: CellNoiseLaw, contributors: int) -> stats.rv_frozen:
    # Devices and workers start without it.
    from scipy import stats

    mean, variance = noise.moments(contributors)
    if noise.dummies == "bernoulli":
        return stats.binom(contributors, noise.mean / noise.minimum)
    if noise.shape is not None:
        shape = noise.shape * contributors / noise.minimum
        return stats.nbinom(shape, mean / variance)
    return stats.poisson(math.nextafter(mean, 0.0))
