"""Registry entry and forecast for single_message: sets of items at independent epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_counts import spoken_for_variance
from dpstream.aggregators.single_message import SingleMessageAggregator
from dpstream.pipeline.protocols.late_calibration import late, late_calibration
from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol, Shuffling
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.single_message import (
    SingleMessage,
    SingleMessageLaw,
    SingleMessageParameters,
)


class SingleMessageForecast(PerEpochForecast):
    def __init__(
        self, law: SingleMessageLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
        kept, other = map(float, law.probabilities)
        self.cells = (
            f"a bit for each of {law.items:,} items"
            if law.bits
            else f"one of {law.items + 1:,} symbols: the items and 'no item'"
        )
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "local_epsilon": law.local_epsilon,
                "kept": kept,
                "false": other,
                "bytes_per_user": law.message_format.report_bytes,
            },
        )
        self.notes = (
            "predicted errors are for an item that few users have, and grow with the number of "
            "users; an item that many have is estimated worse",
        )

    def like(self, held: NDArray[np.float64]) -> SingleMessageForecast:
        return SingleMessageForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        variance = spoken_for_variance(self._law.probabilities, users, holders=0)
        return math.sqrt(variance)


PROTOCOL = Protocol(
    name="single_message",
    parameters=SingleMessageParameters,
    law=lambda requested: SingleMessageLaw,
    calibrate=late_calibration("single_message", sized=True),
    randomizer=SingleMessage,
    aggregation=Aggregation.of(SingleMessageAggregator),
    shuffling=Shuffling(
        late("single_message", "epsilon_with"),
        without_shuffling=lambda law: SingleMessage(law).without_shuffling,
        one_message=True,
    ),
    planning=Planning.of(SingleMessageForecast),
    values=lambda requested: SetDomain(requested.domain, requested.items),
    per_epoch=True,
    examples=(
        Example(SingleMessageParameters(2.0, 0.05, ("a", "b")), 1, minimum=4),
        Example(SingleMessageParameters(1.5, 0.05, ("a",)), 2, minimum=3),
        Example(SingleMessageParameters(2.0, 0.05, ("a", "b"), response="rappor"), 1, 3),
        Example(SingleMessageParameters(4.0, 0.05, ("a", "b"), items=2), 2, minimum=2),
    ),
)
