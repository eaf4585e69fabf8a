"""Noise for overlapping cells, where a message is drawn uniformly from its item's set.

Every item x has a public set C_x of possible messages; a message about x is drawn uniformly from
it. All sets have the same size. The overlap q is the maximum fraction of a set that lies in another
one. Dummies form a Poisson process, uniform over all possible messages, with a mean of lambda per
set. A user has up to k items and its neighbor has up to k others, so there are 2k sets. Items that
both have can be ignored.

The proof reveals more than an observer sees. Let a(w) be the number of the 2k sets that contain a
message w. Each dummy is revealed with a label, drawn uniformly from those sets, and each real
message with its item. By thinning, the 2k labeled cells are independent. In each cell the dummies
have the density lambda / (|C| a(w)). Let W be the sum of a(w) over the cell's messages. By Mecke's
formula, a real message makes the observation W / lambda times as likely. Without a real message, W
has a compound Poisson distribution Q: jumps of size a have the intensity lambda p_a / a, where p_a
is the fraction of C_x that lies in a sets. With a real message, W has P(w) = w Q(w) / lambda. The
views of a user and its neighbor consist of k such pairs (P, Q) in each direction.

Only the mean of a under p is known: it is at most 1 + beta, with beta = (2k - 1) q. Hockey-stick
divergences are means of convex functions of W, so they grow with W in convex order. W is larger in
this order if the integral of (j - t)+ over the jumps j is larger for every t >= 0 and equal for
t = 0 (compare the jumps, padded with jumps of 0). The integral is lambda times the mean of (1 -
t/a)+ under p. For beta <= 1, this mean is at most

    1 - t + beta t / 2 for t <= 1, and max over a from 2 to 2k of beta (1 - t/a)+ / (a - 1) beyond,

a convex, piecewise linear function of t. Its second derivative, at multiples of 1/2, gives the jump
rates of a pair that dominates all others (`jump_rates`). For k = 1 these rates are exact.

As q tends to 0, lambda tends to the mean for disjoint cells (`shuffled_oracles`); for k = 1 it is
about 1 + q times as large. The true loss can be below that of disjoint cells, since dummies in the
overlap of two sets hide both. For the small q of accurate counts the difference is negligible.
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
    """Return the least (epsilon, delta)-private lambda, the mean number of dummies in a set.

    `overlap` is q, the maximum fraction of a set that another set shares. A user has at most
    `items` (k) items and participates in `epochs` epochs, with new dummies in each.

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
    """Return the mean number of jumps of W in the dominating pair, by jump size in units of 1/2.

    The sum of size times mean number over all sizes is twice lambda.

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

    The result is a tuple: the values of W in an interval; their probabilities, some of them 0; a
    bound on the omitted mass under both Q and P; and the logarithm of the maximum factor by which
    the probabilities are off.
    """
    low, masses, left_out, error = 0, np.ones(1), 0.0, 0.0
    for size, rate in jump_rates(mean, overlap, items).items():
        jumps = PoissonNoise(rate)
        first, last = jumps.window(TAIL)
        # Under P there is one additional jump, of any size.
        last += 1
        spaced = np.zeros((last - first) * size + 1)
        spaced[::size], of_jumps = jumps.weights(first, last)
        # All terms are positive, so no precision is lost to cancellation.
        error += of_jumps + rounding.of_sum(min(len(masses), last - first + 1))
        masses = np.convolve(masses, spaced)
        low += first * size
        left_out += 2 * TAIL
    return (low + np.arange(len(masses))) / 2, masses, left_out, error


def _losses(mean: float, overlap: float, items: int, epochs: int) -> LossDistribution:
    weights, absent, left_out, error = weight_law(mean, overlap, items)
    present = absent * weights / mean
    # Certain outcomes include an empty cell, which proves that no real message was sent.
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
    """Return beta, the mean number of other sets that also contain one set's message."""
    for name, number in (("items", items), ("epochs", epochs)):
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} is {number!r}; expected a positive integer")
    beta = (2 * items - 1) * overlap
    if not 0 <= beta <= 1:
        raise ValueError(
            f"overlap is {overlap:.3g} with {items} items per user; expected 0 to "
            f"1 / {2 * items - 1}. Use more buckets or fewer items"
        )
    return beta
