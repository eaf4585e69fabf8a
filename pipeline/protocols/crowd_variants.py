"""Registry entry and forecast for one-message protocols that count by crowd."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.crowd_items import CrowdsAggregator
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.protocols.late_calibration import late
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Law,
    Planning,
    Protocol,
    Shuffling,
)
from dpstream.pipeline.values.crowds import CrowdDomain
from dpstream.randomizers.crowds import CrowdDevices, CrowdsLaw, CrowdsLawReader, sum_rounded_up
from dpstream.randomizers.guarantee import Guarantee

# A user who moves between crowds has a message in the windows of both.
_WINDOWS = 2


class CrowdsForecast:
    def __init__(self, law: CrowdsLaw, contents: Forecast) -> None:
        self._law = law
        self._contents = contents
        self.reports_per_user = contents.reports_per_user
        more = {
            "crowds": law.crowds,
            "shift": law.counts.shift,
            "deviation_of_size": math.sqrt(law.counts.variance),
        }
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {**more, **row} for row in contents.constants
        )
        self.notes = (
            "predicted errors, in users, are for an item in crowds of equal size; a crowd's "
            "error grows with the square root of its size",
            *contents.notes,
        )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        """Return standard errors for a rare item; a crowd's noisy size does not increase them."""
        return self.of_crowd(max(1, users // self._law.crowds))

    def of_crowd(self, users: int) -> NDArray[np.float64]:
        left = max(1, users - self._law.counts.shift)
        found: NDArray[np.float64] = self._contents.standard_errors(left) * (users / left)
        return found


def in_crowds(
    entry: Protocol, column: str, labels: Sequence[str], epsilon: float, delta: float
) -> Protocol:
    """Return the registry entry for a one-message protocol that counts listed items by crowd.

    The input's `column` determines the crowd. `epsilon` covers the noisy sizes of all crowds at an
    epoch. `delta` covers the sizes at all epochs together.
    """
    shuffling, planning, aggregation = entry.shuffling, entry.planning, entry.aggregation
    assert shuffling is not None
    counts_law = late("crowds", "calibrate")

    def calibrate(parameters: Any, last_epoch: int, minimum: int) -> Law:
        contents: Any = entry.calibrate(parameters, last_epoch, minimum, _WINDOWS)
        return CrowdsLaw(contents, len(labels), counts_law(epsilon, delta, last_epoch))

    def epsilon_with(law: CrowdsLaw, honest: int) -> float:
        contents = shuffling.epsilon_with(law.contents, honest, _WINDOWS)
        return sum_rounded_up(contents, law.counts.epsilon) if math.isfinite(contents) else contents

    def without_shuffling(law: CrowdsLaw) -> Guarantee | None:
        contents = shuffling.without_shuffling(law.contents)
        if contents is None:
            return None
        held = contents.neighbors.partition(";")[0]
        return replace(
            contents,
            neighbors=f"{held}, in the same crowd, which is visible; who is present is public",
        )

    def aggregator(law: CrowdsLaw, requested: Any) -> CrowdsAggregator[Any]:
        return CrowdsAggregator(law, lambda: aggregation.make(law.contents, requested))

    def aggregator_from_bytes(law: CrowdsLaw, requested: Any, data: bytes) -> CrowdsAggregator[Any]:
        return CrowdsAggregator.from_bytes(
            law,
            lambda: aggregation.make(law.contents, requested),
            lambda part: aggregation.read(law.contents, requested, part),
            data,
        )

    def forecast(law: CrowdsLaw, requested: Any, last_epoch: int) -> CrowdsForecast:
        assert planning is not None
        return CrowdsForecast(law, planning.forecast(law.contents, requested, last_epoch))

    return replace(
        entry,
        law=lambda requested: CrowdsLawReader(entry.law(requested).from_json),
        calibrate=calibrate,
        message_format=lambda law: law.message_format,
        randomizer=lambda law: CrowdDevices(law, entry.randomizer(law.contents)),
        aggregation=Aggregation(aggregator, aggregator_from_bytes),
        shuffling=Shuffling(
            epsilon_with, without_shuffling=without_shuffling, crowds=lambda law: law
        ),
        planning=None if planning is None else Planning(forecast),
        values=lambda requested: CrowdDomain(entry.values(requested), column, labels),
        examples=(),
    )
