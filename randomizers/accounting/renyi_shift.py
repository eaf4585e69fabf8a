"""Rényi divergences of shifted noise cells, for proven bounds on boosted reports.

Rényi divergences of independent cells are additive, even if an adversary chooses each cell's inputs
after seeing the outputs of earlier cells (Mironov 2017). The proof for boosted reports needs this
property, and convexity in the shift. Privacy loss distributions are tighter but lack both.

The divergences exclude counts that are far from the mean or possible under only one of the two
distributions. Their probability is charged to delta instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.cell_noise import CellNoise
from dpstream.randomizers.accounting.loss_distributions import Losses
from dpstream.randomizers.accounting.shifted_noise import check_target, shifted_losses

_LEAST_EXCESS, _MOST_EXCESS = 1e-3, 1e5
# The best alpha need not be exact: epsilon is valid for any alpha, and flat near the optimum.
_TOLERANCE = 1e-4
# Relative error of the few operations after the sum over all cells.
_LAST_DIGITS = 1e-13


def shift_divergence(noise: CellNoise, shift: int, alpha: float) -> float:
    """Return the Rényi divergence of order alpha > 1 between a cell and its shifted copy.

    It is ln(sum P^alpha Q^(1 - alpha)) / (alpha - 1), where P and Q are the distributions of the
    noise and of the noise plus `shift`, in the order with the larger divergence.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> [round(shift_divergence(PoissonNoise(7119.0), shift, 21.0), 6) for shift in (0, 1, 2)]
    [0.0, 0.001478, 0.005923]
    """
    return _larger(_both_ways(noise, shift), alpha) if shift else 0.0


def convex_divergences(noise: CellNoise, largest: int, alpha: float) -> NDArray[np.float64]:
    """Return a convex function of the shift that is at least the divergence.

    The result is float64, shape (largest + 1,). Its increment at a shift is the largest increment
    of the divergence up to that shift, so it equals the divergence as long as that is convex. The
    divergence is convex unless the noise is weak and a large shift excludes much probability.

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> convex_divergences(PoissonNoise(7119.0), 2, 21.0).round(6).tolist()
    [0.0, 0.001478, 0.005923]
    """
    return _convex([_both_ways(noise, shift) for shift in range(1, largest + 1)], alpha)


def renyi_epsilon(noise: CellNoise, shifts: Mapping[int, int], delta: float) -> tuple[float, float]:
    """Return the epsilon of cells with these shifts, and the best alpha.

    `shifts` maps each shift to its number of cells. The epsilon also covers all vectors of shifts
    that `shifts` majorizes: it is a sum of `convex_divergences`, and sums of convex functions are
    Schur-convex. Both results are infinite if the excluded probability reaches `delta`.

    With a divergence D of order alpha, (epsilon, delta) holds for epsilon = D + ln((alpha - 1) /
    alpha) - (ln delta + ln alpha) / (alpha - 1) (Canonne, Kamath and Steinke 2020, proposition 12).

    >>> from dpstream.randomizers.accounting.cell_noise import PoissonNoise
    >>> epsilon, alpha = renyi_epsilon(PoissonNoise(7119.0), {1: 165, 4: 2, 7: 3}, 1e-6)
    >>> round(epsilon, 3), round(alpha)
    (1.0, 22)
    """
    check_target(1.0, delta)
    privacy_losses = [_both_ways(noise, shift) for shift in range(1, max(shifts) + 1)]
    cells = np.array([shifts.get(shift, 0) for shift in range(max(shifts) + 1)])
    left = delta - cells.sum() * max(way.certain for ways in privacy_losses for way in ways)
    if left <= 0:
        return math.inf, math.inf

    def epsilon(log_excess: float) -> float:
        excess = math.exp(log_excess)
        divergence = float(cells @ _convex(privacy_losses, 1 + excess))
        charged = math.log1p(1 / excess) + (math.log(left) + math.log1p(excess)) / excess
        return (
            divergence * (1 + rounding.of_sum(len(cells) + 8))
            - charged
            + _LAST_DIGITS * abs(charged)
        )

    # The optimum for a Gaussian distribution of this variance, a tenth of it, and ten times it.
    spread = sum(cells * shift**2 for shift, cells in shifts.items()) / noise.variance
    likely = math.sqrt(-2 * math.log(left) / spread)
    bounds = [math.log(min(max(likely * by, _LEAST_EXCESS), _MOST_EXCESS)) for by in (0.1, 10)]
    found = minimize_scalar(epsilon, bounds=bounds, method="bounded", options={"xatol": _TOLERANCE})
    return float(found.fun), 1 + math.exp(float(found.x))


def _both_ways(noise: CellNoise, shift: int) -> list[Losses]:
    return [shifted_losses(noise, each) for each in (shift, -shift)]


def _larger(ways: Sequence[Losses], alpha: float) -> float:
    return max(_divergence(privacy_losses, alpha) for privacy_losses in ways)


def _convex(privacy_losses: Sequence[Sequence[Losses]], alpha: float) -> NDArray[np.float64]:
    divergences = [0.0, *(_larger(ways, alpha) for ways in privacy_losses)]
    steepest = np.maximum.accumulate(np.diff(divergences))
    return np.concatenate(([0.0], np.cumsum(steepest)))


def _divergence(privacy_losses: Losses, alpha: float) -> float:
    """Return the divergence, rounded up because errors accumulate over thousands of cells."""
    exponents = (alpha - 1) * privacy_losses.losses
    largest = float(exponents.max())
    error = privacy_losses.rounding + rounding.of_sum(len(exponents)) + 2 * rounding.FUNCTION
    error += (alpha - 1) * privacy_losses.slack + rounding.FUNCTION * float(np.abs(exponents).max())
    if largest > 1:
        logarithm = largest + math.log(np.dot(privacy_losses.masses, np.exp(exponents - largest)))
        error += rounding.FUNCTION * (1 + abs(logarithm))
    else:
        # The masses sum to at most 1. Gains exclude that 1, so their error is relatively small.
        gains = np.expm1(exponents)
        excess = float(np.dot(privacy_losses.masses, gains))
        error *= float(np.dot(privacy_losses.masses, np.abs(gains)))
        error += (alpha - 1) * privacy_losses.slack
        logarithm = math.log1p(excess) + rounding.FUNCTION * abs(excess)
    return (logarithm + error) / (alpha - 1)
