"""Calibrate the mechanism of range_values from a job's parameters."""

from __future__ import annotations

import numpy as np

from dpstream.randomizers.accounting.level_weights import optimal_level_weights
from dpstream.randomizers.flip_laws import level_flip_law
from dpstream.randomizers.value_stream import ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate as value_stream_calibrate
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw
from dpstream.randomizers.value_stream.hadamard_values.calibration import (
    best_boosts,
    mean_variance,
    unboosted_share,
)
from dpstream.randomizers.value_stream.range_values import RangeValuesLaw, RangeValuesParameters


def calibrate(parameters: RangeValuesParameters, last_epoch: int) -> RangeValuesLaw:
    """Calibrate the mechanism of a job.

    Each level boosts the number of flips that suits the changes of its nodes. Levels are drawn with
    the probabilities that minimize the mean error of all ranges.

    >>> law = calibrate(RangeValuesParameters(1.0, 4, low=0, high=80, buckets=16), last_epoch=64)
    >>> [level.booleans.max_changes for level in law.levels]
    [3, 3, 3, 3]
    >>> [round(probability, 2) for probability in law.level_probabilities]
    [0.0, 0.17, 0.2, 0.63]
    """
    levels = range(1, parameters.levels + 1)
    # A value changes at most once per epoch.
    max_changes = max(0, min(parameters.max_changes, last_epoch - 1))
    flips = [level_flip_law(level, parameters.levels, max_changes + 1) for level in levels]
    boosted = [parameters.boosted or best_boosts(law, last_epoch) for law in flips]
    booleans = {
        number: value_stream_calibrate(
            ValueStreamParameters(parameters.epsilon, number), last_epoch
        )
        for number in set(boosted)
    }
    variances = {number: mean_variance(law, last_epoch) for number, law in booleans.items()}
    return RangeValuesLaw(
        levels=tuple(
            HadamardValuesLaw(
                items=1 << level,
                max_changes=max_changes,
                unboosted_share=unboosted_share(law, number),
                booleans=booleans[number],
            )
            for level, law, number in zip(levels, flips, boosted, strict=True)
        ),
        level_weights=optimal_level_weights(np.array([variances[number] for number in boosted])),
    )
