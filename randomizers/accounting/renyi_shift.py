"""Renyi divergences of shifted noise cells: what boosted reports give away, by proof.

Renyi divergences of independent cells add up, also where an adversary chooses each cell's inputs in
view of what the earlier ones gave (Mironov 2017). That, and convexity in the shift, is what a proof
for boosted reports needs; privacy loss distributions are closer but have neither.

Counts far from the mean are left out of the divergences, and their probability is charged to delta
instead. So there is nothing to lose where one law cannot give a count that the other can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.optimize import minimize_scalar

from randomizers.accounting.cell_noise import CellNoise
from randomizers.accounting.shifted_noise import shifted_losses

_TAIL = 1e-20
_LEAST_ALPHA, _MOST_ALPHA = 1 + 1e-3, 1e5
# The best alpha matters little: what is returned is private for the one that is found.
_TOLERANCE = 1e-4


def shift_divergence(noise: CellNoise, shift: int, alpha: float) -> float:
    """Renyi divergence of order alpha of a cell from itself shifted; the larger direction.

    ln(sum P^alpha Q^(1 - alpha)) / (alpha - 1) over counts within the window of the noise, where P
    and Q are the laws of the noise and of the noise plus `shift`, and the same with P and Q
    exchanged.

    Args:
        shift: number of messages, not negative.
        alpha: above 1.

    >>> from randomizers.accounting.cell_noise import PoissonNoise
    >>> [round(shift_divergence(PoissonNoise(7119.0), shift, 21.0), 6) for shift in (0, 1, 2)]
    [0.0, 0.001478, 0.005918]
    """
    if shift == 0:
        return 0.0
    return max(_one_way(noise, each, alpha) for each in (shift, -shift))


def left_out(shifts: Mapping[int, int]) -> float:
    """Probability that `shift_divergence` leaves out, in so many cells of each shift."""
    return 2 * _TAIL * sum(shifts.values())


def renyi_epsilon(noise: CellNoise, shifts: Mapping[int, int], delta: float) -> tuple[float, float]:
    """Epsilon of shifted cells by their Renyi divergences, for the best alpha.

    With a divergence D of order alpha, (epsilon, delta) holds for epsilon = D + ln((alpha - 1) /
    alpha) - (ln delta + ln alpha) / (alpha - 1) (Canonne, Kamath and Steinke 2020, proposition 12).

    Args:
        noise: of every cell.
        shifts: number of cells by shift.
        delta: above what `left_out` charges to it.

    Returns:
        Epsilon and alpha.

    >>> from randomizers.accounting.cell_noise import PoissonNoise
    >>> epsilon, alpha = renyi_epsilon(PoissonNoise(7119.0), {1: 165, 4: 2, 7: 3}, 1e-6)
    >>> round(epsilon, 3), round(alpha)
    (1.0, 22)
    """
    log_delta = math.log(delta - left_out(shifts))

    def epsilon(log_excess: float) -> float:
        alpha = 1 + math.exp(log_excess)
        divergence = sum(
            cells * shift_divergence(noise, shift, alpha) for shift, cells in shifts.items()
        )
        conversion = math.log1p(-1 / alpha) - (log_delta + math.log(alpha)) / (alpha - 1)
        return divergence + conversion

    # Of the Gaussian law with these shifts, and a few times more and less.
    spread = sum(cells * shift**2 for shift, cells in shifts.items()) / noise.variance
    likely = 0.5 * math.log(max(2 * -log_delta / spread, 1e-4))
    bounds = math.log(_LEAST_ALPHA - 1), math.log(_MOST_ALPHA)
    found = minimize_scalar(
        epsilon,
        bounds=(max(likely - 2, bounds[0]), min(likely + 2, bounds[1])),
        method="bounded",
        options={"xatol": _TOLERANCE},
    )
    return float(found.fun), 1 + math.exp(float(found.x))


def _one_way(noise: CellNoise, shift: int, alpha: float) -> float:
    told = shifted_losses(noise, shift, _TAIL)
    exponents = (alpha - 1) * told.losses
    largest = float(exponents.max())
    return (largest + math.log(np.dot(told.masses, np.exp(exponents - largest)))) / (alpha - 1)
