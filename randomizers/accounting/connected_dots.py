"""Round privacy losses of continuous outcomes to a grid, using the losses' tail probabilities.

All outcomes with losses between two neighboring grid points are merged. Their probabilities in both
worlds are split between the two points so that each part has the loss of its point ("Connect the
Dots", Doroshenko et al. 2022). The exact outcome reveals no more than the split one. Gaussian noise
is a special case: the analytic Gaussian mechanism (Balle, Wang, ICML 2018, Theorem 8).

Suppose that several numbers have independent noise N(0, sigma^2) and differ between neighbors by a
Euclidean distance of D. Their loss is that of one number that differs by D. This also holds if each
number can depend on earlier publications, as long as the distance never exceeds D: the loss is a
Brownian motion whose time is the squared distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.loss_distributions import LossDistribution
from dpstream.randomizers.search import least_integer, least_real

# Assumed relative error of the two probabilities whose difference is delta; far above the true one.
_WRONG = 1e-12
# Powers of two that bound the search for a standard deviation.
_LEAST_POWER, _MOST_POWER = -30, 40


def normal_delta(epsilon: float, deviation: float) -> float:
    """Return the delta of Gaussian noise for numbers that differ by 1, rounded up.

    >>> round(normal_delta(1, 3.7304), 7)
    1e-05
    """
    half, shift = 1 / (2 * deviation), epsilon * deviation
    first = float(ndtr(half - shift))
    second = float(np.exp(epsilon + log_ndtr(-half - shift)))
    return first - second + _WRONG * (first + second)


def normal_deviation(epsilon: float, delta: float) -> float:
    """Return the least standard deviation of noise for numbers that differ by 1, rounded up.

    >>> round(normal_deviation(1, 1e-6) ** 2, 3)
    17.848
    """
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise ValueError(
            f"epsilon is {epsilon!r} and delta is {delta!r}; expected a positive finite epsilon "
            "and a delta above 0 and below 1"
        )

    def enough(deviation: float) -> bool:
        return normal_delta(epsilon, deviation) <= delta

    power = least_integer(lambda power: enough(2.0**power), _LEAST_POWER, _MOST_POWER)
    if power == _MOST_POWER:
        raise ValueError(
            f"epsilon {epsilon:g} with delta {delta:g} requires more Gaussian noise than is "
            "supported"
        )
    return least_real(enough, 2.0 ** (power - 1), 2.0**power, 1e-13)


Tail = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Function from losses to the probabilities of larger losses."""

# Relative and absolute errors of tails, far above measured errors, charged to the larger loss.
_RELATIVE: Final = 1e-11
_ABSOLUTE: Final = 1e-15
_DEVIATIONS: Final = 12.0


def of_tails(first: Tail, second: Tail, low: float, high: float, width: float) -> LossDistribution:
    """Return the loss distribution with the given tail functions in the two worlds.

    The tails must be nonincreasing. The grid extends from `low` to `high`, rounded outward. Losses
    below its first point are raised to it, and losses above its last point are treated as infinite.
    """
    points = np.arange(math.floor(low / width), math.ceil(high / width) + 1)
    losses = (points * width).astype(np.float64)
    over, under = first(losses), second(losses)
    both, other = -np.diff(over), -np.diff(under)
    up = (both - other * np.exp(losses[:-1])) / -math.expm1(-width)
    up = np.clip(up + _RELATIVE * both + _ABSOLUTE, 0.0, np.maximum(both, 0.0))
    masses = np.zeros(len(points))
    masses[:-1] += np.maximum(both, 0.0) - up
    masses[1:] += up
    masses[0] += max(0.0, 1.0 - float(over[0]))
    certain = float(over[-1]) * (1 + _RELATIVE) + len(points) * _ABSOLUTE
    lost = rounding.of_sum(len(points)) + 4 * rounding.UNIT
    return LossDistribution(width, int(points[0]), masses, certain, 0.0, lost)


def normal_losses(deviation: float, width: float) -> LossDistribution:
    """Return the loss distribution of noise N(0, deviation^2) on a number that differs by 1.

    The loss is Gaussian, too, with mean 1/(2 deviation^2) and standard deviation 1/deviation.

    >>> round(normal_losses(3.7304, 1e-3).delta(1.0), 7)
    1e-05
    """
    mean, spread = 0.5 / deviation**2, 1 / deviation

    def tail(sign: int) -> Tail:
        def likely(losses: NDArray[np.float64]) -> NDArray[np.float64]:
            larger: NDArray[np.float64] = np.exp(log_ndtr((sign * mean - losses) / spread))
            return larger

        return likely

    reach = mean + _DEVIATIONS * spread
    return of_tails(tail(1), tail(-1), mean - _DEVIATIONS * spread, reach, width)


def laplace_losses(scale: float, width: float) -> LossDistribution:
    """Return the loss distribution of Laplace noise on a number that differs by 1.

    >>> round(laplace_losses(2.0, 1e-4).epsilon(1e-9), 3)
    0.5
    """
    most = 1 / scale

    # With noise z and the numbers 0 and 1 the loss is (|z - 1| - |z|) / scale. It exceeds l for
    # z < (1 - l scale) / 2.
    def first(losses: NDArray[np.float64]) -> NDArray[np.float64]:
        place = (1 - losses * scale) / 2
        inside = 1 - 0.5 * np.exp(-np.maximum(place, 0.0) / scale)
        return np.where(losses >= most, 0.0, np.where(losses < -most, 1.0, inside))

    def second(losses: NDArray[np.float64]) -> NDArray[np.float64]:
        # The same noise around 1: z < (1 - l scale) / 2 is -(1 + l scale) / 2 from it.
        place = (1 + losses * scale) / 2
        inside = 0.5 * np.exp(-np.maximum(place, 0.0) / scale)
        return np.where(losses >= most, 0.0, np.where(losses < -most, 1.0, inside))

    return of_tails(first, second, -most - width, most + width, width)
