"""Noise of overlapping cells, where a message is one element of its item's set.

A message of item x is a uniform element of a public set C_x of messages. All sets are equally
large, and two of them share at most a part q of each, the overlap. Dummies are a Poisson process
uniform over the messages, with mean lambda in each set. A user has up to k items, and its neighbor
up to k others: the messages of 2k sets can be told apart, those of common items cannot.

The proof reveals more than an observer sees. A message w lies in a(w) of the 2k sets. Each dummy is
revealed with one of these, drawn uniformly, as its label, and each real message with its item. By
thinning, the 2k labeled cells are independent. In one of them the dummies have the density
lambda / (|C| a(w)), so by Mecke's formula a message makes the observation W / lambda times as
likely, W being the sum of a(w) over the cell's messages. "Absent" has the distribution Q of W,
compound Poisson with the intensity lambda p_a / a of jumps a, where p_a is the part of C_x that
lies in a sets; "present" has P(w) = w Q(w) / lambda. The view of a user and its neighbor is k pairs
in each direction.

Of p only the mean is known, at most 1 + beta with beta = (2k - 1) q. Hockey-stick divergences are
means of convex functions of W, and W is larger in convex order if the integral of (j - t)+ over the
jumps is so for every t >= 0 and equal for t = 0 (compare the jumps, padded with jumps of 0). That
integral is lambda times the mean of (1 - t/a)+ over p, which for beta <= 1 is at most

    1 - t + beta t / 2 for t <= 1, and max over a from 2 to 2k of beta (1 - t/a)+ / (a - 1) beyond,

a convex, piecewise linear function of t. So all pairs are dominated by the one whose jumps are its
second derivative, which are multiples of 1/2 (`jump_rates`). For k = 1 these are the true ones.

The result tends to that of disjoint cells (`shuffled_oracles`) as q tends to 0, and for k = 1 is
about 1 + q times as large. The truth may be better than that of disjoint cells, since dummies in
the overlap of two sets hide both. For the small q that make counts accurate it does not matter.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from dpstream.randomizers.accounting.shifted_noise import (
    GRID_FINENESS,
    LEAST_MASS,
    TAIL,
    check_target,
)
from dpstream.randomizers.search import least_parameter


def poisson_for_overlapping(
    epsilon: float, delta: float, overlap: float, items: int = 1, epochs: int = 1
) -> float:
    """Return the least (epsilon, delta)-private mean number of dummies in a set, lambda.

    `overlap` is q, the maximum part of a set shared with any other one. A user has at most `items`
    k items, and takes part in `epochs` epochs with new dummies in each.

    >>> round(poisson_for_overlapping(1.0, 1e-6, overlap=0.0), 1)
    42.7
    >>> round(poisson_for_overlapping(1.0, 1e-6, overlap=1 / 64), 1)
    43.2
    """
    check_target(epsilon, delta)
    beta = _shared(overlap, items, epochs)
    messages = items * epochs
    guess = 2 * messages * (1 + beta) * (math.log(1 / delta) / epsilon**2 + 1 / epsilon)

    return least_parameter(
        lambda mean: _losses(mean, overlap, items, epochs).delta(epsilon), delta, guess
    )


def epsilon_for_overlapping(
    mean: float, delta: float, overlap: float, items: int = 1, epochs: int = 1
) -> float:
    """Return the least epsilon for a delta, rounded up; infinite if delta is too small.

    >>> round(epsilon_for_overlapping(43.3, 1e-6, overlap=1 / 64), 2)
    1.0
    """
    check_target(1.0, delta)
    _shared(overlap, items, epochs)
    return _losses(mean, overlap, items, epochs).epsilon(delta)


def jump_rates(mean: float, overlap: float, items: int) -> dict[int, float]:
    """Return the mean number of jumps of W in the dominating pair, by size in halves.

    The sum of sizes, weighted with these, is twice lambda.

    >>> jump_rates(100.0, overlap=0.1, items=1)
    {2: 90.0, 4: 5.0}
    >>> {size: round(rate, 6) for size, rate in jump_rates(100.0, overlap=0.1, items=2).items()}
    {2: 70.0, 3: 10.0, 4: 2.5, 8: 2.5}
    """
    beta, sets = (2 * items - 1) * overlap, 2 * items
    rates = {2: mean * (1 - beta)}
    for covered in range(2, sets):
        cube = (covered - 1) * covered * (covered + 1)
        rates[covered + 1] = 2 * mean * beta / cube
    rates[2 * sets] = mean * beta / (sets * (sets - 1))
    return {size: rate for size, rate in rates.items() if rate > 0}


def weight_law(
    mean: float, overlap: float, items: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    """Return the distribution Q of W in the dominating pair.

    Return all weights W in an interval, their probabilities, some of which are 0, a bound on the
    mass left out, under Q as well as under P, and the logarithm of the maximum factor by which the
    probabilities may be larger or smaller.
    """
    low, masses, left_out, error = 0, np.ones(1), 0.0, 0.0
    for size, rate in jump_rates(mean, overlap, items).items():
        jumps = PoissonNoise(rate)
        first, last = jumps.window(TAIL)
        # Under P there is one jump more, of any size.
        last += 1
        spaced = np.zeros((last - first) * size + 1)
        spaced[::size], of_jumps = jumps.weights(first, last)
        # Sums of positive numbers only: nothing is lost to cancellation.
        error += of_jumps + rounding.of_sum(min(len(masses), last - first + 1))
        masses = np.convolve(masses, spaced)
        low += first * size
        left_out += 2 * TAIL
    return (low + np.arange(len(masses))) / 2, masses, left_out, error


def _losses(mean: float, overlap: float, items: int, epochs: int) -> LossDistribution:
    weights, absent, left_out, error = weight_law(mean, overlap, items)
    present = absent * weights / mean
    # Certain outcomes include an empty cell: no message of its set was sent.
    kept = (absent > LEAST_MASS) & (present > LEAST_MASS)
    losses = np.log(weights[kept] / mean)
    error += 4 * rounding.FUNCTION
    slack = 4 * rounding.FUNCTION * (1 + float(np.abs(losses).max()))
    certain = (float(each[~kept].sum()) * (1 + 2 * error) + left_out for each in (present, absent))
    removed = Losses(losses, present[kept], next(certain), slack, error)
    added = Losses(-losses, absent[kept], next(certain), slack, error)
    width = GRID_FINENESS * math.sqrt((1 + (2 * items - 1) * overlap) / mean)
    return composed([(removed, items * epochs), (added, items * epochs)], width)


def _shared(overlap: float, items: int, epochs: int) -> float:
    """Return beta, the mean number of other sets that contain a message of a set."""
    for name, number in (("items", items), ("epochs", epochs)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}; expected a whole number, at least 1")
    beta = (2 * items - 1) * overlap
    if not 0 <= beta <= 1:
        raise ValueError(
            f"sets that share {overlap:.3g} of each other cannot hide {items} items; expected at "
            f"most 1 / {2 * items - 1}. Use more buckets or fewer items"
        )
    return beta
