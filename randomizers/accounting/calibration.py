"""Calibrate composed randomizers to an epsilon: optimally, or as in *Randomize the Future*.

Both calibrations yield integer weights. Optimal weights are rounded so that the loss never exceeds
epsilon. The paper's weights are rounded to about 100 bits, and the loss is computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

from dpstream.randomizers.composed import ComposedLaw

_PRECISION = 80
WEIGHT_BITS = 100
"""Approximate precision of weights, in bits."""


def optimal(k: int, epsilon: float | Decimal, inside: int = 1, outside: int = 1) -> ComposedLaw:
    """Return the distribution with the largest c_gap among those with a loss of at most epsilon.

    Sign vectors within a distance t of the input have e^epsilon times the weight of other vectors;
    t maximizes c_gap. This is optimal: c_gap is linear in the weights, with coefficients 1 - 2d/k
    that decrease with the distance d. So only the two extreme weights occur, the larger one at
    small distances. Their ratio is below e^epsilon by at most 2^-99.

    The same holds for k messages instead of signs, of which `inside` are in the set of an input and
    `outside` are not; c_gap is then the probability of a message in the set.

    >>> round(optimal(4, 1.0).c_gap, 6)
    0.20962
    """
    other = 1 << WEIGHT_BITS
    with localcontext() as context:
        context.prec = _PRECISION
        # Decimal.exp is correctly rounded: its lower neighbor cannot exceed the true value.
        factor = Decimal(epsilon).exp().next_minus()
        own = int((factor * other).next_minus().to_integral_value(ROUND_FLOOR))
    messages = inside + outside
    best, radius = Fraction(-1), 0
    within = first_inside = 0
    for distance in range(k):
        # Vectors up to the distance, and those of them with the first message inside.
        rest = inside ** (k - 1 - distance) * outside**distance
        within += math.comb(k, distance) * rest * inside
        first_inside += math.comb(k - 1, distance) * rest * inside
        kept = Fraction(
            (own - other) * first_inside + other * inside * messages ** (k - 1),
            (own - other) * within + other * messages**k,
        )
        if kept > best:
            best, radius = kept, distance
    return ComposedLaw((own,) * (radius + 1) + (other,) * (k - radius))


def response_within(loss: float, parts: int = 1) -> ComposedLaw:
    """Return the distribution of randomized response with a loss just below `loss` / `parts`."""
    with high_precision():
        return optimal(1, Decimal(loss) / parts * (1 - Decimal("1e-15")))


def published(k: int, epsilon: float) -> ComposedLaw:
    """Return the distribution of Algorithm 3 in *Randomize the Future*, with real-valued bounds.

    Randomized response with epsilon / (5 sqrt k) is applied to each of the k signs. A result whose
    distance is in the annulus [LB, UB] is released; any other is replaced by a uniform draw from
    outside it. The true loss, `ComposedLaw.loss`, is 0.19 to 0.48 for a requested epsilon of 1.

    >>> law = published(4, 1.0)
    >>> round(law.c_gap, 6), round(law.loss, 6)
    (0.03638, 0.252435)
    """
    with high_precision():
        root = Decimal(k).sqrt()
        single = Decimal(epsilon) / (5 * root)
        odds = single.exp()
        low = k / (odds + 1) - 2 * root
        high = (k / single) * (2 * odds / (odds + 1)).ln()
        return annulus(k, single, low, high)


def annulus(k: int, single: Decimal, low: Decimal, high: Decimal) -> ComposedLaw:
    """Return the distribution of k randomized signs, released if their distance lies in an annulus.

    Any other result is replaced by a uniform draw from outside the annulus (Algorithm 3 of
    *Randomize the Future*). `single` is the loss of each of the k signs. The annulus contains the
    distances from `low` to `high`, inclusive.
    """
    with high_precision():
        flip = 1 / (single.exp() + 1)
        densities = [flip**distance * (1 - flip) ** (k - distance) for distance in range(k + 1)]
        outside = [distance for distance in range(k + 1) if not low <= distance <= high]
        vectors = sum(math.comb(k, distance) for distance in outside)
        mass = sum(
            (math.comb(k, distance) * densities[distance] for distance in outside), Decimal()
        )
        for distance in outside:
            densities[distance] = mass / vectors
        # 2^k times a density is of the order of 1.
        scale = 1 << (k + WEIGHT_BITS)
        return ComposedLaw(
            tuple(int((density * scale).to_integral_value()) for density in densities)
        )


@contextmanager
def high_precision() -> Iterator[None]:
    """Compute decimals with 80 digits, rounded half to even."""
    with localcontext() as context:
        context.prec, context.rounding = _PRECISION, ROUND_HALF_EVEN
        yield
