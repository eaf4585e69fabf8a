"""Privacy losses of continuous outcomes on a grid, from how likely larger losses are.

All outcomes with losses between two neighbouring points of the grid are taken together. Their
probabilities in both worlds are split between the two points, such that each part has the loss of
its point ("Connect the Dots", Doroshenko et al. 2022): whoever sees the outcome sees no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.loss_distributions import LossDistribution

Tail = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From losses, how likely larger ones are."""

# Relative and absolute errors of tails, far above what is measured, that go to the larger loss.
_RELATIVE: Final = 1e-11
_ABSOLUTE: Final = 1e-15
_DEVIATIONS: Final = 12.0


def of_tails(first: Tail, second: Tail, low: float, high: float, width: float) -> LossDistribution:
    """A distribution from how likely larger losses are in either world.

    Args:
        first: with the first neighbour, nonincreasing.
        second: the same with the second neighbour.
        low: losses below are taken for the least point above it.
        high: losses above count as certain.
        width: of the grid.
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
    """Of a number with noise N(0, deviation^2) that differs by 1 between neighbours.

    Its loss is normal, too: with mean 1/(2 deviation^2) and deviation 1/deviation.

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
    """Of a number with Laplace noise of this scale that differs by 1 between neighbours.

    >>> round(laplace_losses(2.0, 1e-4).epsilon(1e-9), 3)
    0.5
    """
    most = 1 / scale

    # With noise z and the numbers 0 and 1 a loss is (|z - 1| - |z|) / scale, which exceeds l where
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
