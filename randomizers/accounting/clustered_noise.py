"""Negative-binomial noise: fewer dummies than Poisson noise, for a little more variance.

A privacy guarantee requires a certain variance, while communication costs grow with the mean. For
Poisson noise, variance and mean are equal. The variance of clustered dummies is above their mean.
Clusters cost accuracy; a bound on that cost limits their size.
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
    """Return the negative-binomial noise with the least mean under a bound on its variance.

    The bound is `variance_factor` times `poisson_mean`, the mean and variance of Poisson noise that
    suffices. Shapes are integers: a smaller shape means fewer dummies and a larger variance.
    `shifts` returns the shifted cells, given their noise. Raises `ValueError` if the factor is at
    most 1, or too close to 1 for any shape.
    """
    if not variance_factor > 1:
        raise ValueError(f"variance_factor is {variance_factor!r}; expected a number above 1")

    variance = variance_factor * poisson_mean

    def widest(shape: int) -> NegativeBinomialNoise:
        """Return the noise of this shape with the maximum allowed variance."""
        mean = 2 * variance / (1 + math.sqrt(1 + 4 * variance / shape))
        return NegativeBinomialNoise(float(shape), mean)

    def enough(shape: int) -> bool:
        if shape > _LARGEST_SHAPE:
            raise ValueError(f"variance_factor is {variance_factor}, too close to 1. Increase it")
        return delta_spent(shifts(widest(shape)), epsilon) <= delta

    shape = least_integer(enough, 0, step=16)
    noise_of = partial(NegativeBinomialNoise, float(shape))
    guess = widest(shape).mean
    return noise_of(least_mean(epsilon, delta, lambda mean: shifts(noise_of(mean)), guess))
