"""Registry entry and forecast for fragments of a count-mean sketch, for comparison only."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol, Shuffling
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.guarantee import rounded_up
from experiments.protocols.count_mean_sketch import (
    CountMeanSketch,
    CountMeanSketchLaw,
    CountMeanSketchParameters,
)
from experiments.protocols.count_mean_sketch.aggregator import (
    CountMeanSketchAggregator,
    bits_variance,
    shared_variance,
)
from experiments.protocols.count_mean_sketch.calibration import calibrate, epsilon_with


class CountMeanSketchForecast(PerEpochForecast):
    """Forecast of the errors from reversed bits, and from other items in the same buckets."""

    def __init__(
        self, law: CountMeanSketchLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.items, 1, held)
        self._law = law
        self.cells = f"a bit for each of {law.buckets:,} buckets, in one of {law.rows:,} rows"
        self.reports_per_user = np.full(last_epoch, law.bits.messages_per_user)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "rows": law.rows,
                "buckets": law.buckets,
                "fewest_in_a_row": law.bits.minimum,
                "epsilon_of_a_user": law.bits.local_epsilon,
            },
        )
        self.notes = (
            "for comparison only: use count_min, which is more accurate, or fragments if the "
            "shuffler separates the messages of a device",
            f"a message hides only among those of the same row: {law.bits.minimum:,} of the "
            f"{law.minimum:,} users required by shuffle.minimum",
            "if the shuffler keeps the messages of a device together, epsilon is "
            f"{rounded_up(law.bits.local_epsilon, 4)} at every epoch",
        )

    def like(self, held: NDArray[np.float64]) -> CountMeanSketchForecast:
        return CountMeanSketchForecast(self._law, self._last_epoch, held)

    def _noise_deviation(self, users: int) -> float:
        return math.sqrt(bits_variance(self._law, users))

    def _deviation(self, users: int) -> float:
        others = np.delete(users * self._held, self._held.argmin())
        shared = shared_variance(self._law, float(others.sum()), float(np.square(others).sum()))
        return math.hypot(self._noise_deviation(users), math.sqrt(shared))


PROTOCOL = Protocol(
    name="count_mean_sketch",
    parameters=CountMeanSketchParameters,
    law=lambda requested: CountMeanSketchLaw,
    calibrate=calibrate,
    randomizer=CountMeanSketch,
    aggregation=Aggregation.of(CountMeanSketchAggregator),
    shuffling=Shuffling(
        epsilon_with,
        distinct_reports=True,
        without_shuffling=lambda law: CountMeanSketch(law).without_shuffling,
    ),
    planning=Planning.of(CountMeanSketchForecast),
    values=lambda requested: SetDomain(requested.domain, 1),
    per_epoch=True,
    examples=(
        Example(CountMeanSketchParameters(2.0, 0.05, ("a",), rows=2, buckets=2), 1, minimum=4),
    ),
)
