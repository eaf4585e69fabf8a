"""Calibrate the mechanism of value_stream from a job's parameters."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from scipy import optimize

from dpstream.randomizers.accounting.boosted_counts import least_varying
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.value_stream import (
    ValueStreamLaw,
    ValueStreamParameters,
)
from dpstream.randomizers.value_stream.tilt import reach

# Minimum amount of epsilon reserved for rounding, and the amount per epoch.
_LEAST_KEPT, _KEPT_OF_AN_EPOCH = 1e-6, 4e-10


def calibrate(parameters: ValueStreamParameters, last_epoch: int) -> ValueStreamLaw:
    """Calibrate the mechanism of a job.

    The squared-norm budget and the change kernel minimize the mean variance. theta and m maximize
    the gain for a loss slightly below epsilon; the difference is reserved for rounding.

    Raises `ValueError` unless `last_epoch` is from 1 to 2^20.

    >>> law = calibrate(ValueStreamParameters(epsilon=1, max_changes=2), last_epoch=170)
    >>> round(law.boost, 1), round(law.decay, 2), round(law.gain, 4)
    (4.5, 0.54, 0.3975)
    >>> round(law.squared_norm_budget, 1)
    119.1
    """
    kernel = best_kernel(last_epoch, parameters.max_changes)
    return law_with(kernel, parameters, last_epoch)


def law_with(kernel: Kernel, parameters: ValueStreamParameters, last_epoch: int) -> ValueStreamLaw:
    kept = max(_LEAST_KEPT, _KEPT_OF_AN_EPOCH * last_epoch)
    reserve = (kernel.boost + 0.5) ** 2 / 40
    squared_norm_budget = kernel.squared_norm_budget(last_epoch, parameters.max_changes) + reserve
    return law_of_budget(
        kernel, squared_norm_budget, parameters, last_epoch, parameters.epsilon - kept
    )


def law_of_budget(
    kernel: Kernel,
    squared_norm_budget: float,
    parameters: ValueStreamParameters,
    last_epoch: int,
    loss: float,
) -> ValueStreamLaw:
    theta = best_threshold(loss)
    beginning = float(
        reach(np.zeros(1), np.array([squared_norm_budget]), theta * math.sqrt(squared_norm_budget))[
            0
        ]
    )
    # Rounded up, since more noise means a smaller loss.
    noise = math.ceil(2**64 / (1 + Fraction(math.expm1(loss)) * Fraction(beginning)))
    share = noise / 2**64
    return ValueStreamLaw(
        last_epoch=last_epoch,
        epsilon=parameters.epsilon,
        max_changes=parameters.max_changes,
        boost=kernel.boost,
        decay=kernel.decay,
        squared_norm_budget=squared_norm_budget,
        theta=theta,
        gain=(1 - share) * _density(theta) / beginning,
        noise=noise,
    )


def best_threshold(loss: float) -> float:
    """Return theta, the maximum of E phi(c) / (1 + E Phi(-c)) over c, for E = e^loss - 1.

    It is also the c at which the maximum is attained.

    >>> round(best_threshold(1.0), 7)
    0.397463
    """
    odds = math.expm1(loss)

    def excess(threshold: float) -> float:
        beyond = math.erfc(threshold / math.sqrt(2)) / 2
        return odds * _density(threshold) / (1 + odds * beyond) - threshold

    found: float = optimize.brentq(excess, 0.0, 10.0, xtol=1e-14, rtol=1e-14)
    return found


def best_kernel(last_epoch: int, max_changes: int) -> Kernel:
    """Return the kernel with the least mean variance: r^2 times the mean of `Kernel.variances`."""

    def squared_norm_budget(kernel: Kernel) -> float:
        return kernel.squared_norm_budget(last_epoch, max_changes) + (kernel.boost + 0.5) ** 2 / 40

    return least_varying(last_epoch, squared_norm_budget)


def _density(point: float) -> float:
    return math.exp(-point * point / 2) / math.sqrt(2 * math.pi)
