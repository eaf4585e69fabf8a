"""Lower bounds on the noise of a cell, for estimates that are rarely too small.

A cell counts the users with an item, perhaps other users, and noise. With the mean noise
subtracted, the count is too small about as often as too large. With a number subtracted that the
noise rarely falls below, the count is rarely too small. That number is most of the mean noise. The
paper subtracts nothing, so its estimates are never too small.

Reference: *On the Power of Multiple Anonymous Messages*, Section 4.2.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from dpstream.randomizers.cell_noise_law import CellNoiseLaw

if TYPE_CHECKING:
    from scipy import stats

_MOST_COMPUTED: Final = 1e8
"""Maximum mean for which the noise's quantile is computed; beyond it, a bound is used."""

_ROUNDING: Final = 1e-6
"""Relative error by which a computed probability is assumed to be too small."""


def least_noise(noise: CellNoiseLaw, contributors: int, below: float) -> int:
    """Return the largest m such that a cell has fewer than m dummies with probability <= `below`.

    All contributors are assumed to add their dummies.

    >>> least_noise(CellNoiseLaw("poisson", mean=43.0, minimum=1000), 1000, 0.001)
    24
    """
    mean, variance = noise.moments(contributors)
    if mean > _MOST_COMPUTED:
        # Chernoff: a sum of nonnegative numbers has the lower tail of a normal variate.
        return int(mean - math.sqrt(2 * max(mean, variance) * math.log(1 / below)))
    return max(0, int(_law(noise, contributors).ppf(below * (1 - _ROUNDING))))


def allowance(noise: CellNoiseLaw, contributors: int, rows: int, underestimated: float) -> float:
    """Return the amount to add to the minimum of an item's cells, each minus its mean noise.

    The estimate is too small only if the noise of some row is below its assumed minimum. Over all
    `rows` cells of the item, the probability of this is at most `underestimated`.
    """
    mean, _ = noise.moments(contributors)
    return mean - least_noise(noise, contributors, underestimated / rows)


def _law(noise: CellNoiseLaw, contributors: int) -> stats.rv_frozen:
    # Imported here, so that devices and workers start without scipy.
    from scipy import stats

    mean, variance = noise.moments(contributors)
    if noise.dummies == "bernoulli":
        return stats.binom(contributors, noise.mean / noise.minimum)
    if noise.shape is not None:
        shape = noise.shape * contributors / noise.minimum
        return stats.nbinom(shape, mean / variance)
    return stats.poisson(math.nextafter(mean, 0.0))
