"""Noise for boosted value reports, and the best boost.

Let s_t be a user's value in epoch t. The first k changes x_t = s_t - s_{t-1} are boosted. In epoch
t a user sends r + y_t messages to that epoch's cell: y_t is s_t + r x_t if a change is boosted, and
s_t otherwise. Let Y_t be the cell's count minus its constant part. The estimate is then
x^_t = (r x^_{t-1} + Y_t) / (r + 1). Its variance is lambda (1 - q^t) / (2r + 1), where lambda is
the variance of a cell's noise and q = (r / (r + 1))^2. With r = 0 there is no boost, as in
`continual_counts`.

In an epoch with b boosted changes (0 to 2, at most one per stream), two streams differ by at most
1 + b r. The streams agree until a change that only one of them makes. So the vector of shifts is
weakly majorized by a vector with two cells shifted by 1 + r, k - 1 cells by 1 + 2r and all others
by 1. The Rényi divergence of a cell is convex in its shift, so the latter vector has the largest
sum of divergences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from dpstream.randomizers.accounting.cell_noise import PoissonNoise
from dpstream.randomizers.accounting.continual_counts import poisson_for_epochs
from dpstream.randomizers.accounting.renyi_shift import renyi_epsilon
from dpstream.randomizers.accounting.shifted_noise import check_target
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.search import least_parameter

# Smaller boosts are set to 0: over one or two epochs the best boost tends to 0.
_NO_BOOST = 1e-3


@dataclass(frozen=True, slots=True)
class BoostedReports:
    """Inputs to the noise: `last_epoch` T, `max_changes` k (boosted, per user) and `boost` r."""

    last_epoch: int
    max_changes: int
    boost: int

    def __post_init__(self) -> None:
        for name, least in (("last_epoch", 1), ("max_changes", 1), ("boost", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is {value!r}; expected an integer of at least {least}")

    @property
    def shifts(self) -> dict[int, int]:
        """Worst-case number of cells for each shift.

        >>> BoostedReports(170, 4, 3).shifts
        {1: 165, 4: 2, 7: 3}
        >>> BoostedReports(4, 4, 3).shifts  # both streams can change in all epochs but the first
        {4: 1, 7: 3}
        """
        if self.boost == 0:
            return {1: self.last_epoch}
        both = min(self.max_changes, self.last_epoch) - 1
        one = min(2, self.last_epoch - both)
        shifts = {
            1: self.last_epoch - both - one,
            1 + self.boost: one,
            1 + 2 * self.boost: both,
        }
        return {shift: cells for shift, cells in shifts.items() if cells}

    def error(self, variance: float) -> float:
        """Return the RMSE over all epochs if no user has more than k changes.

        `variance` is the variance of a cell's noise, whose mean is subtracted from each count.

        >>> round(BoostedReports(170, 4, 3).error(7119.0), 1)
        31.8
        """
        kept = (self.boost / (self.boost + 1)) ** 2
        ages = np.arange(1, self.last_epoch + 1)
        return math.sqrt(variance * float((1 - kept**ages).mean()) / (2 * self.boost + 1))


def poisson_for_boosted(epsilon: float, delta: float, reports: BoostedReports) -> PoissonNoise:
    """Return the least Poisson noise that makes whole streams (epsilon, delta)-private.

    Without a boost it is the exact noise that `continual_counts` computes.

    >>> reports = BoostedReports(64, 4, 2)
    >>> round(poisson_for_boosted(1.0, 1e-6, reports).mean)
    3168
    """
    check_target(epsilon, delta)
    if reports.boost == 0:
        return poisson_for_epochs(epsilon, delta, reports.last_epoch)
    shifts = reports.shifts
    squares = sum(cells * shift**2 for shift, cells in shifts.items())
    guess = squares * (2 * math.log(1 / delta) / epsilon**2 + 1 / epsilon)
    return PoissonNoise(
        least_parameter(
            lambda mean: renyi_epsilon(PoissonNoise(mean), shifts, delta)[0], epsilon, guess
        )
    )


def best_boost(
    epsilon: float,
    delta: float,
    last_epoch: int,
    max_changes: int,
) -> tuple[BoostedReports, PoissonNoise]:
    """Return the boost with the least error (near sqrt(T / 4k), or 0) and its noise.

    >>> reports, noise = best_boost(1.0, 1e-6, 170, 4)
    >>> reports.boost, round(noise.mean)
    (3, 7118)
    """
    check_target(epsilon, delta)
    BoostedReports(last_epoch, max_changes, 0)
    likely = math.sqrt(last_epoch / (4 * max_changes))
    tried: dict[int, tuple[float, BoostedReports, PoissonNoise]] = {}

    def error(boost: int) -> float:
        # For very few epochs the search would accept ever larger boosts for negligible gains.
        if not 0 <= boost <= 2 * math.ceil(likely):
            return math.inf
        if boost not in tried:
            reports = BoostedReports(last_epoch, max_changes, boost)
            noise = poisson_for_boosted(epsilon, delta, reports)
            tried[boost] = reports.error(noise.variance), reports, noise
        return tried[boost][0]

    boost = round(likely)
    for step in (-1, 1):
        while error(boost + step) < error(boost):
            boost += step
    error(boost)
    _, reports, noise = tried[boost]
    return reports, noise


def least_varying(
    last_epoch: int, squared_norm_budget: Callable[[Kernel], float], most_boost: float = math.inf
) -> Kernel:
    """Return the change kernel with the least mean variance, given each kernel's squared norm."""

    def kernel_at(point: NDArray[np.float64]) -> Kernel:
        boost = min(math.exp(float(point[0])), most_boost)
        return Kernel(boost, min(max(float(point[1]), 0.0), 0.999))

    def cost(point: NDArray[np.float64]) -> float:
        kernel = kernel_at(point)
        outside = abs(float(point[1]) - kernel.decay)
        return (
            math.log(squared_norm_budget(kernel) * float(kernel.variances(last_epoch).mean()))
            + outside
        )

    best = optimize.minimize(
        cost,
        np.array([math.log(2.0), 0.5]),
        method="Nelder-Mead",
        options={"xatol": 1e-4, "fatol": 1e-9, "maxiter": 1000},
    )
    found = kernel_at(best.x)
    return found if found.boost > _NO_BOOST else Kernel(0.0, 0.0)
