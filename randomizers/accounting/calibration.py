"""Composed randomizers for a wanted epsilon: the one of the paper, and the best one there is.

Both come out as integer weights. Those of the best one are rounded so that the loss never exceeds
epsilon; those of the paper's carry about 100 bits, and its loss is what they make it.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

from randomizers.composed import ComposedLaw

_PRECISION = 80
_WEIGHT_BITS = 100


def optimal(k: int, epsilon: float) -> ComposedLaw:
    """The law with the largest c_gap of all whose loss is at most epsilon.

    Sign vectors within a distance t of the input weigh e^epsilon times as much as the others; t
    maximises c_gap. No law does better: c_gap is linear in the weights with coefficients 1 - 2d/k
    that decrease in d, so only the two extreme weights occur, the larger one first.

    Args:
        k: number of signs.
        epsilon: the loss; the ratio of two weights lies below e^epsilon, by at most 2^-99.

    >>> round(optimal(4, 1.0).c_gap, 6)
    0.20962
    """
    outside = 1 << _WEIGHT_BITS
    with localcontext() as context:
        context.prec = _PRECISION
        # Decimal.exp is correctly rounded: its neighbour below cannot exceed the true value.
        factor = Decimal(epsilon).exp().next_minus()
        inside = int((factor * outside).next_minus().to_integral_value(ROUND_FLOOR))
    best, radius = Fraction(-1), 0
    within = 0
    for distance in range(k):
        within += math.comb(k, distance)
        # The sum of C(k,d) (1 - 2d/k) up to a distance is C(k-1, distance).
        advantage = (inside - outside) * math.comb(k - 1, distance)
        c_gap = Fraction(advantage, (outside << k) + (inside - outside) * within)
        if c_gap > best:
            best, radius = c_gap, distance
    return ComposedLaw((inside,) * (radius + 1) + (outside,) * (k - radius))


def published(k: int, epsilon: float) -> ComposedLaw:
    """The law of Algorithm 3 of "Randomize the Future", with the paper's real bounds.

    Each sign is kept by randomized response with epsilon / (5 sqrt k). A result in the annulus
    [LB, UB] of distances is released; any other is replaced by a uniform draw from outside of it.
    The true loss, `ComposedLaw.loss`, is 0.19 to 0.48 at epsilon 1.

    Args:
        k: number of signs.
        epsilon: what the rule is asked for; it spends less.

    >>> law = published(4, 1.0)
    >>> round(law.c_gap, 6), round(law.loss, 6)
    (0.03638, 0.252435)
    """
    with localcontext() as context:
        context.prec, context.rounding = _PRECISION, ROUND_HALF_EVEN
        root = Decimal(k).sqrt()
        single = Decimal(epsilon) / (5 * root)
        odds = single.exp()
        flip = 1 / (odds + 1)
        low = k * flip - 2 * root
        high = (k / single) * (2 * odds / (odds + 1)).ln()
        densities = [flip**distance * (1 - flip) ** (k - distance) for distance in range(k + 1)]
        outside = [distance for distance in range(k + 1) if not low <= distance <= high]
        vectors = sum(math.comb(k, distance) for distance in outside)
        mass = sum(
            (math.comb(k, distance) * densities[distance] for distance in outside), Decimal()
        )
        for distance in outside:
            densities[distance] = mass / vectors
        # 2^k times a density is of the order of 1.
        scale = 1 << (k + _WEIGHT_BITS)
        return ComposedLaw(
            tuple(int((density * scale).to_integral_value()) for density in densities)
        )
