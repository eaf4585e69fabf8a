"""Calibrate the mechanism of hadamard_values from a job's parameters.

When an item changes, the Boolean that its device tracks flips for half of the rows. With a boost
for every change, all flips are tracked immediately. With fewer boosts, estimates are less noisy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.flip_laws import flip_law
from dpstream.randomizers.value_stream import ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import best_kernel
from dpstream.randomizers.value_stream.calibration import calibrate as value_stream_calibrate
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValuesLaw,
    HadamardValuesParameters,
)

REFERENCE_ERROR = 0.1
"""Standard error of an estimate, as a fraction of the count, for which `best_boosts` balances noise
and bias. At larger errors, fewer boosts would suffice, but estimates have little value."""
_DIGITS = 6
# Numbers of boosts to try: all up to _EVERY, then about _OF_A_DOUBLING for each doubling.
_EVERY, _OF_A_DOUBLING = 16, 8


def calibrate(parameters: HadamardValuesParameters, last_epoch: int) -> HadamardValuesLaw:
    """Calibrate the mechanism of a job.

    >>> parameters = HadamardValuesParameters(1.0, 8, tuple("abcdefghijkl"))
    >>> law = calibrate(parameters, last_epoch=64)
    >>> law.booleans.max_changes, law.unboosted_share
    (5, 0.299913)
    """
    items = len(parameters.domain)
    # An item changes at most once per epoch.
    max_changes = max(0, min(parameters.max_changes, last_epoch - 1))
    # Users who never change their item flip at most once, for any item and row.
    flips = flip_law(items, values=max_changes + 1) if max_changes else np.full(2, 0.5)
    boosted = parameters.boosted or best_boosts(flips, last_epoch)
    return HadamardValuesLaw(
        items=items,
        max_changes=max_changes,
        unboosted_share=unboosted_share(flips, boosted),
        booleans=value_stream_calibrate(
            ValueStreamParameters(parameters.epsilon, boosted), last_epoch
        ),
    )


def unboosted_share(flips: NDArray[np.float64], boosted: int) -> float:
    return round(float(flips[boosted + 1 :].sum()), _DIGITS)


def best_boosts(flips: NDArray[np.float64], last_epoch: int) -> int:
    """Return the number of boosts with the least error at `REFERENCE_ERROR`.

    The error is that of the count of an item whose users have all changed `max_changes` times. Its
    noise is `REFERENCE_ERROR` with a boost for every change. If a flip is not boosted, a fraction
    a / (1 + a) q^m of it is missing m epochs later (`Kernel.left`); these sum to a / (1 - b)
    epochs. Such flips can occur anywhere in the horizon, and errors of the Boolean count twice.
    `flips` is from `dpstream.randomizers.flip_laws`.
    """
    most = len(flips) - 1
    every = list(range(1, min(most, _EVERY) + 1))
    while every[-1] < most:
        every.append(min(most, every[-1] + every[-1] // _OF_A_DOUBLING))
    kernels = [best_kernel(last_epoch, boosted) for boosted in every]
    noise = np.array(
        [
            kernel.squared_norm_budget(last_epoch, boosted) * _mean(kernel, last_epoch)
            for kernel, boosted in zip(kernels, every, strict=True)
        ]
    )
    # Expected number of flips of a user after the first `boosted`.
    beyond = np.cumsum(np.cumsum(flips[::-1]))[::-1]
    unboosted = np.array([beyond[boosted + 1] if boosted < most else 0.0 for boosted in every])
    missing = np.array([kernel.boost / (1 - kernel.decay) for kernel in kernels]) / last_epoch
    error = REFERENCE_ERROR**2 * noise / noise[-1] + np.square(2 * unboosted * missing)
    return every[int(error.argmin())]


def mean_variance(law: ValueStreamLaw, last_epoch: int) -> float:
    return (
        4 * _mean(Kernel(law.boost, law.decay), last_epoch) * law.squared_norm_budget / law.gain**2
        + 1
    )


def _mean(kernel: Kernel, last_epoch: int) -> float:
    return math.fsum(kernel.variances(last_epoch).tolist()) / last_epoch
