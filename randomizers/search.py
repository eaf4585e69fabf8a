"""Find the threshold parameter of a monotone condition.

A calibration defines its loss as a function of one parameter, and searches for the parameter here.
Every result has been tested to meet the condition, unless it is an untested end of the interval.
Results err on the safe side: noise and losses are rounded up, and allowances down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

# Relative tolerance of `least_parameter`, whose result is above the exact value.
_TOLERANCE: Final = 1e-5
_FIRST_STEP: Final = 1.2
_MOST_EXCESS: Final = 10.0
_MOST: Final = 10**12


def least_parameter(loss: Callable[[float], float], target: float, guess: float) -> float:
    """Return the least positive parameter with at most the target loss, rounded up.

    The loss must decrease as the parameter grows, and can be 0 or infinite. The search starts at
    `guess`. Raises `ValueError` if there is no such parameter up to 10^12.

    >>> round(least_parameter(lambda deviation: 3 / deviation, 0.5, guess=1.0), 3)
    6.0
    """

    def excess(parameter: float) -> float:
        found = loss(parameter)
        return math.log(found / target) if found > 0 else -math.inf

    low = high = guess
    step = _FIRST_STEP
    while excess(high) > 0:
        low, high, step = high, high * step, step**2
        if high > _MOST:
            raise ValueError(
                f"noise of up to {_MOST:g} messages per cell is not enough for the guarantee"
            )
    while low == high or excess(low) <= 0:
        low, high, step = low / step, low, step**2
        if low < 1 / _MOST:
            return high

    first, last = math.log(low), math.log(high)

    def clipped(log: float) -> float:
        found = min(max(excess(math.exp(log)), -_MOST_EXCESS), _MOST_EXCESS)
        # Rounding of the logarithms may have moved an end to the other side of the root.
        if log == first:
            return max(found, math.ulp(0.0))
        return min(found, 0.0) if log == last else found

    root = math.exp(crossing(clipped, first, last, _TOLERANCE))
    return raised(lambda parameter: excess(parameter) <= 0, root, _TOLERANCE)


def crossing(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return where a continuous function is 0, within a tolerance on either side."""
    # Imported here, since devices use this module too, and might not have scipy.
    from scipy.optimize import brentq

    return float(brentq(excess, low, high, xtol=tolerance))


def raised(
    enough: Callable[[float], bool], value: float, step: float, growth: float = 1.0
) -> float:
    """Raise a value until it is enough, by a fraction `step` that `growth` multiplies each time."""
    while not enough(value):
        value, step = value * (1 + step) or step, step * growth
    return value


def least_real(
    enough: Callable[[float], bool], low: float, high: float, tolerance: float = 0.0
) -> float:
    """Return the least number from `low` to `high` that is enough, rounded up.

    It is too large by at most the fraction `tolerance`. `high` is not tested.

    >>> least_real(lambda number: number * number >= 2, 0.0, 2.0)
    1.4142135623730951
    """
    return low if enough(low) else _halved(enough, low, high, tolerance)[1]


def largest_real(
    fits: Callable[[float], bool], low: float, high: float, tolerance: float = 0.0
) -> float:
    """Return the largest number that fits, rounded down; neither end is tested."""
    return _halved(lambda number: not fits(number), low, high, tolerance)[0]


def least_integer(
    enough: Callable[[int], bool], low: int, high: int | None = None, step: int = 1
) -> int:
    """Return the least integer above `low` that is enough.

    If no integer below `high` is enough, `high` is returned untested. Without `high`, distances
    from `low` double, starting at `step`. Raises `ValueError` if none up to 10^12 is enough.

    >>> least_integer(lambda number: number * number > 50, 0)
    8
    """
    if high is None:
        first, high = low, low + step
        while not enough(high):
            low, step = high, 2 * step
            high = first + step
            if step > _MOST:
                raise ValueError(f"no number up to {low:,} meets the condition")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _halved(
    enough: Callable[[float], bool], low: float, high: float, tolerance: float
) -> tuple[float, float]:
    while high - low > tolerance * high and low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high
