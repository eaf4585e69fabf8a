"""Noise for counts to which a user sends one message in every epoch in which its value is 1.

There is one cell per epoch. Neighbors can differ in a user's whole stream: by one message in each
of up to `last_epoch` cells. In the worst case, one neighbor's stream has no messages and the
other's has one in every epoch. For the chosen noise, every pattern of cells shifted in different
directions is verified to be no worse (`dpstream.randomizers.accounting.directions`).

The number of changes is not limited. The standard deviation of a count is that of the noise, for
any number of users.
"""

from __future__ import annotations

import math
from functools import partial

from dpstream.randomizers.accounting.cell_noise import (
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.directions import ShiftedEitherWay, least_mean_either_way
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    check_target,
    fewest_dummies,
    least_mean,
)

VARIANCE_FACTOR = 1.25
"""Default maximum variance of negative-binomial noise, relative to that of Poisson noise."""


def epoch_shifts(noise: CellNoise, last_epoch: int) -> list[ShiftedCells]:
    """Return the cells that differ between two streams, if all shift in the same direction."""
    if type(last_epoch) is not int or last_epoch < 1:
        raise ValueError(f"last_epoch is {last_epoch!r}; expected a positive integer")
    return [ShiftedCells(noise, 1, last_epoch)]


def poisson_for_epochs(epsilon: float, delta: float, last_epoch: int) -> PoissonNoise:
    """Return the least Poisson noise that makes whole streams (epsilon, delta)-private.

    >>> round(poisson_for_epochs(1.0, 1e-6, 64).mean)
    1155
    """
    check_target(epsilon, delta)
    guess = last_epoch * (2 * math.log(1 / delta) / epsilon**2 + 1 / epsilon)
    mean = least_mean(
        epsilon, delta, lambda mean: epoch_shifts(PoissonNoise(mean), last_epoch), guess
    )
    return PoissonNoise(least_mean_either_way(epsilon, delta, PoissonNoise, last_epoch, mean))


def epsilon_for_epochs(noise: CellNoise, delta: float, last_epoch: int) -> float:
    """Return the least known epsilon for a delta, rounded up; infinite if delta is too small.

    >>> round(epsilon_for_epochs(PoissonNoise(1155.2), 1e-6, 64), 3)
    1.0
    """
    check_target(1.0, delta)
    return ShiftedEitherWay(noise, last_epoch).epsilon(delta)


def negative_binomial_for_epochs(
    epsilon: float, delta: float, last_epoch: int, variance_factor: float = VARIANCE_FACTOR
) -> NegativeBinomialNoise:
    """Return the negative-binomial noise with the fewest dummies for a bounded loss of accuracy."""
    fewest = fewest_dummies(
        epsilon,
        delta,
        lambda noise: epoch_shifts(noise, last_epoch),
        poisson_for_epochs(epsilon, delta, last_epoch).mean,
        variance_factor,
    )
    noise_of = partial(NegativeBinomialNoise, fewest.shape)
    mean = least_mean_either_way(epsilon, delta, noise_of, last_epoch, fewest.mean)
    return NegativeBinomialNoise(fewest.shape, mean)
