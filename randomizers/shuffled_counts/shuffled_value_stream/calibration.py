"""Calibrate the shuffled variant of value_stream from a job's parameters."""

from __future__ import annotations

import math

from dpstream.randomizers.accounting.boosted_counts import least_varying
from dpstream.randomizers.accounting.connected_dots import normal_deviation
from dpstream.randomizers.accounting.shifted_noise import delta_of_tables
from dpstream.randomizers.accounting.table_distances import FOR_TABLES
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.normal_noise import NormalNoise
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    MAX_BOOST,
    STEPS,
    ShuffledValueStreamLaw,
)


def calibrate(
    parameters: ShuffledCountsParameters, last_epoch: int, minimum: int
) -> ShuffledValueStreamLaw:
    """Calibrate for values 0 and 1 with boosted changes; the noise does not depend on `minimum`.

    Raises `ValueError` if no noise suffices, or if users cannot send one message per epoch.

    >>> requested = ShuffledCountsParameters(1, 1e-6, max_changes=4, dummies="shuffle")
    >>> law = calibrate(requested, last_epoch=170, minimum=100)
    >>> round(law.boost, 2), round(law.decay, 2), round(law.squared_norm_budget / 65536, 2)
    (3.07, 0.43, 111.52)
    >>> round(law.deviation / 256, 1)
    89.2
    """
    allowed = parameters.messages_per_user
    if allowed is not None and allowed < last_epoch:
        raise ValueError(
            f"messages_per_user is {allowed:g}; expected at least {last_epoch:,}, one message per "
            "epoch"
        )
    max_changes = parameters.max_changes
    assert max_changes is not None

    def squared_norm_budget(kernel: Kernel) -> float:
        return kernel.squared_norm_budget(last_epoch, max_changes, rounding=1 / STEPS)

    return law_with(
        least_varying(last_epoch, squared_norm_budget, MAX_BOOST), parameters, last_epoch
    )


def law_with(
    kernel: Kernel, parameters: ShuffledCountsParameters, last_epoch: int
) -> ShuffledValueStreamLaw:
    """Return the mechanism with a given change kernel, optimal or not."""
    epsilon, delta, max_changes = parameters.epsilon, parameters.delta, parameters.max_changes
    assert max_changes is not None
    # Rounded up by more than the floating-point error, so the budget never limits a device that
    # runs the protocol, and the noise is calibrated to the budget that is charged.
    most = kernel.squared_norm_budget(last_epoch, max_changes, rounding=1 / STEPS) * STEPS**2
    squared_norm_budget = math.ceil(most * (1 + 1e-12))
    distance = math.nextafter(2 * math.sqrt(squared_norm_budget), math.inf)
    noise = NormalNoise(math.ceil(distance * normal_deviation(epsilon, delta * (1 - FOR_TABLES))))
    if delta_of_tables(epsilon, noise.distance, last_epoch) > FOR_TABLES * delta:
        raise ValueError(
            f"epsilon {epsilon:g} with delta {delta:g} requires a more precise noise distribution "
            "than is available. Use a smaller epsilon or a larger delta"
        )
    return ShuffledValueStreamLaw(
        last_epoch=last_epoch,
        epsilon=epsilon,
        delta=delta,
        max_changes=max_changes,
        calibration="normal",
        squared_norm_budget=squared_norm_budget,
        deviation=noise.deviation,
        boost=kernel.boost,
        decay=kernel.decay,
    )
