"""Losses as whole numbers: epsilons in 10^-9, deltas in 10^-18.

A number counts as the decimal that it is written as, the shortest one that no other number has; so
a tenth is a tenth, and ten of them are 1. What is spent is rounded up and limits are rounded down.
Clients in other languages come to the same digits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

EPSILON_DIGITS: Final = 9
DELTA_DIGITS: Final = 18


def spent(number: float, digits: int) -> int:
    """A loss in units of 10^-digits, rounded up.

    >>> spent(0.1, EPSILON_DIGITS), spent(1 / 3, 4)
    (100000000, 3334)

    Raises:
        ValueError: the number is negative or none.
    """
    scaled = _decimal(number) * int(10**digits)
    return -(-scaled.numerator // scaled.denominator)


def allowed(number: float, digits: int) -> int:
    """A limit in units of 10^-digits, rounded down; `ValueError` as of `spent`."""
    scaled = _decimal(number) * int(10**digits)
    return scaled.numerator // scaled.denominator


def written(amount: int, digits: int) -> str:
    """Units of 10^-digits as a decimal.

    >>> written(1_500_000_000, EPSILON_DIGITS)
    '1.5'
    """
    whole, part = divmod(amount, 10**digits)
    return f"{whole}.{part:0{digits}d}".rstrip("0").rstrip(".")


def read(text: str, digits: int) -> int:
    """What `written` wrote.

    Raises:
        ValueError: it has not written this.
    """
    whole, _, part = text.partition(".")
    amount = int(whole + part.ljust(digits, "0"))
    if amount < 0 or written(amount, digits) != text:
        raise ValueError(f"{text!r} is no amount")
    return amount


def _decimal(number: float) -> Fraction:
    if type(number) not in (int, float) or not 0 <= number < math.inf:
        raise ValueError(f"{number!r} is no loss: give a number from 0 on")
    return Fraction(repr(number))
