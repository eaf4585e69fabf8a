"""Entry point of the package for protocols."""

from __future__ import annotations

from dpstream.aggregators.epoch_responses import EpochResponsesAggregator
from dpstream.pipeline.protocols.baselines import EpochResponsesForecast
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)

from . import FreshResponse, FreshResponseLaw, FreshResponseParameters
from .calibration import calibrate

PROTOCOL = Protocol(
    name="fresh_response",
    parameters=FreshResponseParameters,
    calibrate=calibrate,
    law=lambda requested: FreshResponseLaw,
    message_format=fixed_format(FreshResponse),
    randomizer=FreshResponse,
    aggregation=Aggregation.of(EpochResponsesAggregator),
    planning=Planning.of(EpochResponsesForecast),
    examples=(
        Example(FreshResponseParameters(1.0), 1),
        Example(FreshResponseParameters(4.0), 3),
    ),
)
