"""The entry of the protocol, which the package's metadata names."""

from __future__ import annotations

from dpstream.aggregators.epoch_responses import EpochResponsesAggregator
from dpstream.pipeline.protocols.baselines import EpochResponsesForecast
from dpstream.pipeline.protocols.protocol import Example, Protocol, fixed_words

from . import FreshResponse, FreshResponseLaw, FreshResponseParameters
from .calibration import calibrate

PROTOCOL = Protocol(
    name="fresh_response",
    parameters=FreshResponseParameters,
    calibrate=calibrate,
    law=lambda asked: FreshResponseLaw,
    randomizer=FreshResponse,
    restore=FreshResponse.restore,
    aggregator=lambda law, asked: EpochResponsesAggregator(law),
    aggregator_from_bytes=lambda law, asked, data: EpochResponsesAggregator.from_bytes(law, data),
    word_form=fixed_words(FreshResponse),
    needs_shuffle=False,
    forecast=lambda law, asked, last_epoch: EpochResponsesForecast(law, last_epoch),
    examples=(
        Example(FreshResponseParameters(1.0), 1),
        Example(FreshResponseParameters(4.0), 3),
    ),
)
