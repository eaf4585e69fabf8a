"""Registry entry and forecast for range_values: numbers over time; trusted party: none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.range_values import RangeValuesAggregator
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.followed_forecasts import HadamardValuesForecast, flips_note
from dpstream.pipeline.protocols.forecasts import bucket_notes
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.randomizers.value_stream.range_values import (
    RangeValues,
    RangeValuesLaw,
    RangeValuesParameters,
)
from dpstream.randomizers.value_tree import range_variances, widest_range


class RangeValuesForecast:
    def __init__(
        self, law: RangeValuesLaw, parameters: RangeValuesParameters, last_epoch: int
    ) -> None:
        forecasts = [HadamardValuesForecast(level, last_epoch) for level in law.levels]
        probabilities = np.array(law.level_probabilities)
        self.reports_per_user = probabilities @ [each.reports_per_user for each in forecasts]
        online = np.array([each.standard_errors(1) for each in forecasts])
        smoothed = np.array([each.smoothed_standard_errors(1) for each in forecasts])
        with np.errstate(divide="ignore"):
            self._level_variances = np.square(online) / probabilities[:, None]
            self._smoothed_level_variances = np.square(smoothed) / probabilities[:, None]
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "level": number,
                "nodes": level.items,
                "probability": probability,
                "boosted": level.booleans.max_changes,
                "boost": level.booleans.boost,
                "decay": level.booleans.decay,
                "noise": level.booleans.probability_of_noise,
                "epsilon": level.booleans.loss,
            }
            for number, (level, probability) in enumerate(
                zip(law.levels, law.level_probabilities, strict=True), start=1
            )
        )
        last = law.levels[-1]
        self.notes = (
            *bucket_notes(parameters.low, parameters.high, parameters.buckets, self.widest),
            flips_note(last.max_changes, last.booleans.max_changes, last.unboosted_share, "bucket"),
            "a flip that is not boosted appears gradually, which biases the estimates and is not "
            "in the predicted errors",
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        return np.sqrt(users * range_variances(self._level_variances, 0, 1))

    def smoothed_standard_errors(self, users: int) -> NDArray[np.float64]:
        return np.sqrt(users * range_variances(self._smoothed_level_variances, 0, 1))

    def range_deviations(self, users: int, start: int, end: int) -> NDArray[np.float64]:
        return np.sqrt(users * range_variances(self._level_variances, start, end))

    @property
    def widest(self) -> float:
        """Upper bound on a range's standard error relative to a bucket's, at the last epoch."""
        return widest_range(self._level_variances[:, -1])


PROTOCOL = Protocol(
    name="range_values",
    parameters=RangeValuesParameters,
    law=lambda requested: RangeValuesLaw,
    calibrate=late_calibration("value_stream.range_values"),
    message_format=fixed_format(RangeValues),
    randomizer=RangeValues,
    aggregation=Aggregation.of(
        RangeValuesAggregator,
        change_limit=lambda law, requested, epochs: change_limit(
            requested.max_changes,
            epochs,
            "delayed",
            first_is_free=True,
            boost=max(level.booleans.boost for level in law.levels),
        ),
    ),
    planning=Planning(RangeValuesForecast),
    values=lambda requested: NumericDomain(
        requested.low, requested.high, requested.buckets, requested.initial
    ),
    loss_of_streams=True,
    examples=(
        Example(RangeValuesParameters(1.0, 0, 0, 80, 4), 1),
        Example(RangeValuesParameters(2.0, 1, -5, 5, 2), 2),
    ),
)
