from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest


@pytest.fixture
def exponential_below() -> Callable[[float], Fraction]:
    """Return a lower bound of e^x for x >= 0, within 2^-400, by its series in integers."""

    def bound(exponent: float) -> Fraction:
        numerator, denominator = exponent.as_integer_ratio()
        term = total = 1 << 600
        step = 0
        while term:
            step += 1
            term = term * numerator // (denominator * step)
            total += term
        return Fraction(total, 1 << 600)

    return bound
