"""One bit among those of others that are all equal, each reversed with the same probability.

Others' bits that are 0 count Binomial(n - 1, p) many 1 after reversal, and the own one is a coin
with odds e^loss one way or the other. Numerically nothing that others hold hides it less, where
delta is small; that this is so has not been proven.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from randomizers.accounting.amplification import TAIL, rounding_of_binomials
from randomizers.accounting.cell_noise import BinomialNoise
from randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from randomizers.accounting.shifted_noise import GRID_FINENESS


def delta_among_equal_bits(
    loss: float, contributors: int, epsilon: float, raised: int, lowered: int
) -> float:
    """The least delta for an epsilon, of bits in which two neighbours differ.

    Args:
        loss: ln of the odds that a bit is kept.
        contributors: how many there are, the user included.
        epsilon: of the guarantee.
        raised: bits that are 1 with the first neighbour and 0 with the second.
        lowered: the other way round.

    >>> f"{delta_among_equal_bits(8.0, 100_000, 1.0, 1, 1):.1e}"
    '9.3e-06'
    """
    ways = {(raised, lowered), (lowered, raised)}
    if epsilon >= (raised + lowered) * loss:
        return 0.0
    return max(_composed(loss, contributors, *way).delta(epsilon) for way in ways)


def epsilon_among_equal_bits(
    loss: float, contributors: int, delta: float, raised: int, lowered: int
) -> float:
    """The least epsilon for a delta; arguments as for `delta_among_equal_bits`.

    Raises:
        ValueError: delta is not above 0 and below 1.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}, must be above 0 and below 1")
    ways = {(raised, lowered), (lowered, raised)}
    worst = max(_composed(loss, contributors, *way).epsilon(delta) for way in ways)
    return min(worst, (raised + lowered) * loss)


def _composed(loss: float, contributors: int, raised: int, lowered: int) -> LossDistribution:
    kinds = [
        (_losses(loss, contributors, own), count)
        for own, count in ((1, raised), (0, lowered))
        if count
    ]
    squares = sum(count * float(told.masses @ np.square(told.losses)) for told, count in kinds)
    return composed(kinds, GRID_FINENESS * math.sqrt(squares / (raised + lowered)))


def _losses(loss: float, contributors: int, own: int) -> Losses:
    """The privacy loss of one bit that is `own` with the first neighbour."""
    reversed_ = 1 / (1 + math.exp(loss))
    others = contributors - 1
    low, high = BinomialNoise(others, reversed_).window(TAIL) if others else (0, 0)
    counted = np.arange(low, high + 2)
    others_only = stats.binom.pmf(counted, others, reversed_) if others else (counted == 0) * 1.0
    one_more = np.concatenate([[0.0], others_only[:-1]])
    one = (1 - reversed_) * one_more + reversed_ * others_only
    zero = reversed_ * one_more + (1 - reversed_) * others_only
    first, second = (one, zero) if own else (zero, one)
    error = 2 * rounding_of_binomials(contributors)
    return Losses(np.log(first / second), first, 2 * TAIL, 2 * error, error)
