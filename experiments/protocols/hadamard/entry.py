"""Registry entry and forecast for hadamard: sets of items at independent epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.protocols.alternatives import alternatives
from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol, Shuffling
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.count_min import CountMinParameters
from experiments.protocols.hadamard import Hadamard, HadamardLaw, HadamardParameters
from experiments.protocols.hadamard.aggregator import HadamardAggregator, noise_variance
from experiments.protocols.hadamard.calibration import calibrate, epsilon_with


class HadamardForecast(PerEpochForecast):
    """Forecast of the errors in an item's set from blanket tuples and other items' tuples."""

    def __init__(
        self, law: HadamardLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
        form = law.message_format
        self.cells = f"tuples of {law.rows} columns from a Hadamard matrix of size {law.columns:,}"
        self.reports_per_user = np.full(last_epoch, law.slots + law.blanket)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "rows": law.rows,
                "columns": law.columns,
                "blanket": law.blanket,
                "dummies": law.blanket * law.minimum * law.overlap,
                "bytes_per_user": form.report_bytes * (law.slots + law.blanket),
            },
        )
        self.notes = (
            (
                "predicted errors are for an item that few users have; an item that many have is "
                "estimated better"
            ),
            f"every user adds a blanket whose size depends on shuffle.minimum, {law.minimum:,}: "
            "the closer this minimum is to the number of users, the smaller the errors",
        )

    def like(self, held: NDArray[np.float64]) -> HadamardForecast:
        """Return an equally accurate forecast, because all users send equally many tuples."""
        return HadamardForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        return self._with_messages(users, self._law.slots)

    def _noise_deviation(self, users: int) -> float:
        return self._with_messages(users, 0)

    def _with_messages(self, users: int, messages: int) -> float:
        others = users * (messages + self._law.blanket)
        return math.sqrt(noise_variance(self._law, others))


# `plan` names the protocol to use instead.
alternatives.register(HadamardParameters, alternatives.dispatch(CountMinParameters))

PROTOCOL = Protocol(
    name="hadamard",
    parameters=HadamardParameters,
    law=lambda requested: HadamardLaw,
    calibrate=calibrate,
    randomizer=Hadamard,
    aggregation=Aggregation.of(HadamardAggregator),
    shuffling=Shuffling(epsilon_with),
    planning=Planning.of(HadamardForecast),
    values=lambda requested: SetDomain(requested.domain, requested.items),
    per_epoch=True,
    examples=(
        Example(HadamardParameters(4.0, 0.1, ("a", "b"), 1, 1, "exact", "bernoulli"), 1, 2),
        Example(HadamardParameters(8.0, 0.1, ("a",), 1, 1, "published", "bernoulli"), 1),
    ),
)
