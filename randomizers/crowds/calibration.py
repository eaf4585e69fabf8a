"""Calibrate the deletion of crowds from a job's parameters."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction

from dpstream.randomizers.accounting.crowd_counts import delta_of_counts
from dpstream.randomizers.crowds import CrowdCounts
from dpstream.randomizers.parameter_checks import check_approximate
from dpstream.randomizers.search import least_integer

_DECAY_BITS = 64


def calibrate(epsilon: float, delta: float, last_epoch: int) -> CrowdCounts:
    """Calibrate the deletion; the shift is at least (2 / epsilon) ln(2 epochs / delta).

    The loss of all crowd sizes at one epoch is at most epsilon; delta is that of all epochs
    together.

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
    """Return a bound on each crowd's deleted messages at an epoch, except with probability delta.

    The bound is (4 / epsilon) ln(2 crowds / delta) and holds for all crowds at once. With
    probability at most delta, the noise of any crowd exceeds half of it. The shift is at most the
    other half.

    >>> round(most_lost(calibrate(1.0, 1e-6, 1), 100), 1)
    76.5
    """
    return 4 / counts.epsilon * math.log(2 * crowds / counts.delta)
