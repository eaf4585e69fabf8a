"""What normal noise loses: the analytic Gaussian mechanism (Balle, Wang, ICML 2018, Theorem 8).

Numbers with independent noise N(0, sigma^2) each, that differ between neighbours by a Euclidean
distance D in all, lose as much as one number that differs by D. That also holds where each number
may depend on what was published before, as long as the distance never exceeds D: the loss is
Brownian motion, and distance is its clock.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpstream.randomizers.search import least_integer, least_real

# Of the two probabilities whose difference delta is: far more than they are wrong by.
_WRONG = 1e-12
# Powers of two between which deviations are looked for.
_LEAST_POWER, _MOST_POWER = -30, 40


def normal_delta(epsilon: float, deviation: float) -> float:
    """The delta of normal noise for numbers that differ by 1, rounded up.

    >>> round(normal_delta(1, 3.7304), 7)
    1e-05

    Args:
        epsilon: with which it is spent.
        deviation: of the noise.
    """
    half, shift = 1 / (2 * deviation), epsilon * deviation
    first = float(ndtr(half - shift))
    second = float(np.exp(epsilon + log_ndtr(-half - shift)))
    return first - second + _WRONG * (first + second)


def normal_deviation(epsilon: float, delta: float) -> float:
    """The least deviation for numbers that differ by 1, rounded up.

    >>> round(normal_deviation(1, 1e-6) ** 2, 3)
    17.848

    Raises:
        ValueError: there is none that can be told.
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError(f"no normal noise is known for epsilon {epsilon:g}, delta {delta:g}")

    def enough(deviation: float) -> bool:
        return normal_delta(epsilon, deviation) <= delta

    power = least_integer(lambda power: enough(2.0**power), _LEAST_POWER, _MOST_POWER)
    if power == _MOST_POWER:
        raise ValueError(f"no normal noise is known for epsilon {epsilon:g}, delta {delta:g}")
    return least_real(enough, 2.0 ** (power - 1), 2.0**power, 1e-13)
