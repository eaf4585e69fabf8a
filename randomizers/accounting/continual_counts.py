"""How much noise every-epoch counts need: one message in every epoch in which the value is 1.

There is one cell for each epoch, and all of a user's stream may change: neighbours differ by one
message in up to d cells, each of which one of them has and the other has not. It is worst if one of
them has a message in all epochs and the other in none, seen from the one without. That cells which
are shifted in different directions are no worse is made sure of for the very noise that is chosen,
whichever of the cells they are (`dpstream.randomizers.accounting.continual_counts`).

There is no bound on changes, and the standard deviation of a count is the root of the variance of
the noise, however many users there are.
"""

from __future__ import annotations

import math
from functools import partial

from dpstream.randomizers.accounting.cell_noise import (
    CellNoise,
    NegativeBinomialNoise,
    PoissonNoise,
)
from dpstream.randomizers.accounting.clustered_noise import fewest_dummies
from dpstream.randomizers.accounting.directions import ShiftedEitherWay, least_mean_either_way
from dpstream.randomizers.accounting.shifted_noise import (
    ShiftedCells,
    check_target,
    least_mean,
)

VARIANCE_FACTOR = 1.25
"""How much more variance than Poisson noise negative-binomial noise may have by default."""


def epoch_shifts(noise: CellNoise, last_epoch: int) -> list[ShiftedCells]:
    """The cells in which two streams can be told apart, if all are shifted in one direction.

    Raises:
        ValueError: there is no epoch.
    """
    if type(last_epoch) is not int or last_epoch < 1:
        raise ValueError(f"{last_epoch!r} epochs, must be a whole number, at least 1")
    return [ShiftedCells(noise, 1, last_epoch)]


def poisson_for_epochs(epsilon: float, delta: float, last_epoch: int) -> PoissonNoise:
    """The least Poisson noise that is (epsilon, delta)-private for whole streams.

    Raises:
        ValueError: something is out of range.

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
    """The least known epsilon for a delta, rounded up; infinite where delta is not enough.

    Raises:
        ValueError: something is out of range.

    >>> round(epsilon_for_epochs(PoissonNoise(1155.2), 1e-6, 64), 3)
    1.0
    """
    check_target(1.0, delta)
    return ShiftedEitherWay(noise, last_epoch).epsilon(delta)


def negative_binomial_for_epochs(
    epsilon: float, delta: float, last_epoch: int, variance_factor: float = VARIANCE_FACTOR
) -> NegativeBinomialNoise:
    """Negative-binomial noise with the fewest dummies for a bounded loss of accuracy.

    Args:
        epsilon: wanted, of a whole stream.
        delta: wanted.
        last_epoch: d.
        variance_factor: how much more variance than that of `poisson_for_epochs` is allowed.

    Raises:
        ValueError: something is out of range.
    """
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
