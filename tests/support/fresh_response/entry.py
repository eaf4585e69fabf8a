"""Entry point of the package for protocols."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_responses import EpochResponsesAggregator, response_variance
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)

from . import FreshResponse, FreshResponseLaw, FreshResponseParameters
from .calibration import calibrate


class FreshResponseForecast:
    """Forecast for one bit per device and epoch: all estimates are equally accurate."""

    notes: tuple[str, ...] = ()

    def __init__(self, law: FreshResponseLaw, last_epoch: int) -> None:
        self._law = law
        self.reports_per_user = np.ones(last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = ({"c_gap": law.c_gap},)

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        variance = response_variance(self._law, users)
        return np.full(len(self.reports_per_user), math.sqrt(variance))


PROTOCOL = Protocol(
    name="fresh_response",
    parameters=FreshResponseParameters,
    calibrate=calibrate,
    law=lambda requested: FreshResponseLaw,
    message_format=fixed_format(FreshResponse),
    randomizer=FreshResponse,
    aggregation=Aggregation.of(EpochResponsesAggregator),
    planning=Planning.of(FreshResponseForecast),
    examples=(
        Example(FreshResponseParameters(1.0), 1),
        Example(FreshResponseParameters(4.0), 3),
    ),
)
