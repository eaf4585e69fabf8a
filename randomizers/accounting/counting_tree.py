"""How much noise a shuffled dyadic tree needs, and how it is best shared out among the orders.

At the end of interval (h, j) a partial sum of +1 or -1 is sent as a message of cell (h, j, +) or
(h, j, -), and nothing if it is 0. A stream of at most k changes has at most min(k, intervals of the
order) messages of an order; exchanging it removes as many and adds as many, in distinct cells.
Smaller changes are no worse, since these hold them. An interval is plus minus minus, with the
variance of both cells; without minus cells, where k is 1, with that of one.

The order of the whole horizon is left out where the horizon is a power of two: only the very last
prefix has need of it, and two halves give that as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from randomizers.accounting.cell_noise import CellNoise, NegativeBinomialNoise, PoissonNoise
from randomizers.accounting.clustered_noise import fewest_dummies
from randomizers.accounting.continual_counts import VARIANCE_FACTOR
from randomizers.accounting.shifted_noise import ShiftedCells, check_target, least_mean
from randomizers.tree_variances import combined_variances, order_shares

_MOST_LOG = 5.0


def order_messages(last_epoch: int, changes: int) -> tuple[int, ...]:
    """The most messages that a stream has, by order from 0 up; the M of the literature in all.

    Raises:
        ValueError: there is no epoch or no change.

    >>> [sum(order_messages(170, changes)) for changes in (2, 4)]
    [15, 27]
    >>> order_messages(64, 4)
    (4, 4, 4, 4, 4, 2)
    """
    for name, number in (("last_epoch", last_epoch), ("changes", changes)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}, must be a whole number, at least 1")
    orders = max(1, (last_epoch - 1).bit_length())
    return tuple(min(changes, last_epoch >> order) for order in range(orders))


def tree_shifts(noises: Sequence[CellNoise], messages: Sequence[int]) -> list[ShiftedCells]:
    """The cells in which two streams can be told apart, at worst.

    Args:
        noises: of a cell, by order.
        messages: from `order_messages`.
    """
    return [
        ShiftedCells(noise, shift, count)
        for noise, count in zip(noises, messages, strict=True)
        for shift in (1, -1)
    ]


def equal_poisson(epsilon: float, delta: float, last_epoch: int, changes: int) -> PoissonNoise:
    """The least Poisson noise, the same in all orders, that is (epsilon, delta)-private.

    Raises:
        ValueError: something is out of range.

    >>> round(equal_poisson(1.0, 1e-6, 64, 4).mean)
    786
    """
    check_target(epsilon, delta)
    total = sum(order_messages(last_epoch, changes))
    guess = 2 * total * (math.log(1 / delta) / epsilon**2 + 1 / epsilon)
    return PoissonNoise(_least_scale(epsilon, delta, [1.0], [total], guess))


def best_poisson(
    epsilon: float, delta: float, last_epoch: int, changes: int
) -> tuple[PoissonNoise, ...]:
    """Poisson noise by order, for the least mean variance of all prefixes while they come in.

    Privacy is spent in proportion to the sum of messages over means, nearly; so the shares of the
    orders are optimised with that sum fixed, and then scaled to what is exactly needed.

    Raises:
        ValueError: something is out of range.

    >>> noises = best_poisson(1.0, 1e-6, 64, 4)
    >>> [round(noise.mean / noises[2].mean, 1) for noise in noises]
    [0.5, 1.0, 1.0, 1.0, 1.6, 0.8]
    """
    messages = order_messages(last_epoch, changes)
    counts = np.array(messages, np.float64)

    def means(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        relative = np.exp(logs)
        normalised: NDArray[np.float64] = relative * (counts / relative).sum()
        return normalised

    def log_error(logs: NDArray[np.float64]) -> float:
        return math.log(online_error(means(logs).tolist(), last_epoch))

    found = minimize(
        log_error,
        np.zeros(len(messages)),
        method="L-BFGS-B",
        bounds=[(-_MOST_LOG, _MOST_LOG)] * len(messages),
        options={"ftol": 1e-13, "gtol": 1e-9},
    )
    relative = (means(found.x) / counts.sum()).tolist()
    guess = equal_poisson(epsilon, delta, last_epoch, changes).mean
    scale = _least_scale(epsilon, delta, relative, messages, guess)
    return tuple(PoissonNoise(scale * each) for each in relative)


def equal_negative_binomial(
    epsilon: float,
    delta: float,
    last_epoch: int,
    changes: int,
    variance_factor: float = VARIANCE_FACTOR,
) -> NegativeBinomialNoise:
    """Negative-binomial noise, the same in all orders, with the fewest dummies.

    Args:
        epsilon: wanted, of a whole stream.
        delta: wanted.
        last_epoch: number of epochs.
        changes: k, the most of a stream.
        variance_factor: how much more variance than that of `equal_poisson` is allowed.

    Raises:
        ValueError: something is out of range.
    """
    total = sum(order_messages(last_epoch, changes))
    return fewest_dummies(
        epsilon,
        delta,
        lambda noise: tree_shifts([noise], [total]),
        equal_poisson(epsilon, delta, last_epoch, changes).mean,
        variance_factor,
    )


def interval_variances(noises: Sequence[CellNoise], changes: int) -> list[float]:
    """Variance of an interval's own count, by order."""
    cells = 1 if changes == 1 else 2
    return [cells * noise.variance for noise in noises]


def online_error(variances: Sequence[float], last_epoch: int) -> float:
    """Root mean square error of the counts of all epochs, each from what has come in by then.

    Args:
        variances: from `interval_variances`, one for each order of `order_messages`.
        last_epoch: number of epochs.

    >>> round(online_error([1.0] * 6, 64), 4)
    1.3833
    """
    longer = [math.inf] * (last_epoch.bit_length() - len(variances))
    combined = combined_variances([*variances, *longer])
    return math.sqrt(np.dot(order_shares(last_epoch), combined[: last_epoch.bit_length()]))


def _least_scale(
    epsilon: float,
    delta: float,
    relative: Sequence[float],
    messages: Sequence[int],
    guess: float,
) -> float:
    return least_mean(
        epsilon,
        delta,
        lambda scale: tree_shifts([PoissonNoise(scale * each) for each in relative], messages),
        guess,
    )
