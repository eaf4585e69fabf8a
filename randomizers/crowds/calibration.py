"""Calibrate the deletion of messages from crowds, given a job's parameters.

Of a crowd's n messages, max(0, min(n, n + Z - shift)) remain. Z is drawn from an integer table, so
this distribution is known exactly. If a user moves to another crowd, one crowd has one message
fewer and another has one more.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from dpstream.randomizers.crowds import CrowdCounts
from dpstream.randomizers.noise_tables import TABLE_BITS, discrete_laplace_table
from dpstream.randomizers.parameter_checks import check_approximate
from dpstream.randomizers.search import least_integer

_DECAY_BITS = 64


def calibrate(epsilon: float, delta: float, last_epoch: int) -> CrowdCounts:
    """Calibrate the deletion; the shift is at least (2 / epsilon) ln(2 epochs / delta).

    The loss from all crowd sizes in one epoch is at most epsilon; delta covers all epochs together.

    Raises `ValueError` if epsilon or delta is out of range, or too small for a table of the noise.

    >>> calibrate(1.0, 1e-6, 1).shift
    30
    """
    check_approximate(epsilon, delta)
    decay = decay_of(epsilon)
    shift = least_integer(
        lambda shift: last_epoch * delta_of_counts(decay, shift) <= Fraction(delta),
        max(1, math.ceil(2 / epsilon * math.log(2 * last_epoch / delta))) - 1,
    )
    return CrowdCounts((decay.numerator, decay.denominator), shift, delta)


def decay_of(epsilon: float) -> Fraction:
    """Return e^(-epsilon / 2) in 64 bits, rounded up: more noise, never less."""
    scale = 1 << _DECAY_BITS
    with localcontext() as context:
        context.prec = 80
        # Decimal.exp is correctly rounded: the next larger number is at least the true value.
        exact = (-Decimal(epsilon) / 2).exp().next_plus() * scale
        return Fraction(int(exact.to_integral_value(ROUND_CEILING)), scale)


def most_lost(counts: CrowdCounts, crowds: int) -> float:
    """Bound the messages deleted from each crowd, with a probability of at least 1 - delta.

    The bound is (4 / epsilon) ln(2 crowds / delta) and holds for all crowds at once. With
    probability at most delta, the noise of any crowd exceeds half of the bound. The shift is at
    most the other half.

    >>> round(most_lost(calibrate(1.0, 1e-6, 1), 100), 1)
    76.5
    """
    return 4 / counts.epsilon * math.log(2 * crowds / counts.delta)


def law_of_lost(decay: Fraction, shift: int) -> tuple[int, ...]:
    """Return 2^128 times the probabilities that a large crowd loses 0, 1, 2, ... messages.

    >>> law = law_of_lost(Fraction(1, 2), 1)
    >>> [round(each / 2**128, 4) for each in law[:4]]
    [0.3333, 0.3333, 0.1667, 0.0833]
    """
    table = discrete_laplace_table(decay)
    masses = [high - low for low, high in pairwise((0, *table.bounds))]
    # In ascending order of lost messages, shift - Z, so in descending order of Z.
    lost_first = shift - (table.first + len(masses) - 1)
    masses.reverse()
    if lost_first > 0:
        return (*[0] * lost_first, *masses)
    return (sum(masses[: 1 - lost_first]), *masses[1 - lost_first :])


@lru_cache(maxsize=64)
def delta_of_counts(decay: Fraction, shift: int) -> Fraction:
    """Return the exact delta of an epoch's crowd counts, for a loss of 2 ln(1 / decay).

    The result is the delta of a crowd that loses a user plus the delta of a crowd that gains a user
    (basic composition of independent draws). Each delta is a sum over all counts. A count adds its
    probability in one world minus 1 / decay times that in the other, if positive.
    """
    law = law_of_lost(decay, shift)
    down, up = decay.numerator, decay.denominator
    excess = 0
    for one, other in ((law, (0, *law)), (law, (*law[1:], 0))):
        # `other` is the probability of the same remaining count with one more or one fewer message.
        pairs = zip(one, other, strict=False)
        excess += sum(max(0, down * mine - up * theirs) for mine, theirs in pairs)
    return Fraction(excess, down << TABLE_BITS)
