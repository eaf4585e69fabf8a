"""Losses as integers: epsilons in units of 10^-9, deltas in units of 10^-18.

A number is read as its shortest unique decimal representation: 0.1 is exactly a tenth, and ten
times 0.1 is 1. Spent amounts are rounded up and limits are rounded down. Clients in other languages
compute the same digits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

EPSILON_DIGITS: Final = 9
DELTA_DIGITS: Final = 18


def spent(number: float, digits: int) -> int:
    """Return a loss in units of 10^-digits, rounded up.

    >>> spent(0.1, EPSILON_DIGITS), spent(1 / 3, 4)
    (100000000, 3334)

    Raises `ValueError` if the number is negative, infinite or not a number.
    """
    scaled = _decimal(number) * int(10**digits)
    return -(-scaled.numerator // scaled.denominator)


def allowed(number: float, digits: int) -> int:
    """Return a limit in units of 10^-digits, rounded down; raises `ValueError` like `spent`."""
    scaled = _decimal(number) * int(10**digits)
    return scaled.numerator // scaled.denominator


def written(amount: int, digits: int) -> str:
    """Return units of 10^-digits as a decimal.

    >>> written(1_500_000_000, EPSILON_DIGITS)
    '1.5'
    """
    whole, part = divmod(amount, 10**digits)
    return f"{whole}.{part:0{digits}d}".rstrip("0").rstrip(".")


def read(text: str, digits: int) -> int:
    """Parse the result of `written`; raise `ValueError` for any other text."""
    whole, _, part = text.partition(".")
    amount = int(whole + part.ljust(digits, "0"))
    if amount < 0 or written(amount, digits) != text:
        raise ValueError(f"{text!r} is not an amount; expected a decimal such as 1.5")
    return amount


def _decimal(number: float) -> Fraction:
    if type(number) not in (int, float) or not 0 <= number < math.inf:
        raise ValueError(f"loss is {number!r}; expected a finite number of at least 0")
    return Fraction(repr(number))
