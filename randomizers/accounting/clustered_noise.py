"""Fewer dummies for a little more noise: negative-binomial instead of Poisson noise.

A privacy guarantee asks for a variance, communication pays for a mean. Poisson noise has both the
same; dummies that come in clusters have a larger variance than mean. What is lost is accuracy, and
a bound on that loss decides how large clusters may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from dpstream.randomizers.accounting.cell_noise import NegativeBinomialNoise
from dpstream.randomizers.accounting.shifted_noise import ShiftedCells, delta_spent, least_mean
from dpstream.randomizers.search import least_integer

_LARGEST_SHAPE = 1 << 24


def fewest_dummies(
    epsilon: float,
    delta: float,
    shifts: Callable[[NegativeBinomialNoise], Sequence[ShiftedCells]],
    poisson_mean: float,
    variance_factor: float,
) -> NegativeBinomialNoise:
    """The negative-binomial noise of least mean whose variance is at most so many Poisson ones.

    Among whole shapes: the smaller the shape, the fewer dummies and the larger the variance.

    Args:
        epsilon: wanted.
        delta: wanted.
        shifts: the shifted cells, given their noise.
        poisson_mean: of the Poisson noise that would be enough, which is also its variance.
        variance_factor: above 1.

    Raises:
        ValueError: the factor is not above 1, or so close that no shape is found.
    """
    if not variance_factor > 1:
        raise ValueError(f"variance_factor is {variance_factor!r}, must be above 1")

    variance = variance_factor * poisson_mean

    def widest(shape: int) -> NegativeBinomialNoise:
        """The noise of this shape with all the variance that is allowed."""
        mean = 2 * variance / (1 + math.sqrt(1 + 4 * variance / shape))
        return NegativeBinomialNoise(float(shape), mean)

    def enough(shape: int) -> bool:
        if shape > _LARGEST_SHAPE:
            raise ValueError(f"no negative-binomial noise has {variance_factor} times the variance")
        return delta_spent(shifts(widest(shape)), epsilon) <= delta

    shape = least_integer(enough, 0, step=16)
    noise_of = partial(NegativeBinomialNoise, float(shape))
    guess = widest(shape).mean
    return noise_of(least_mean(epsilon, delta, lambda mean: shifts(noise_of(mean)), guess))
