"""What protocols have in common whose devices answer with one bit at every epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_responses import (
    EpochResponsesAggregator,
    ResponseLaw,
    response_variance,
)
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Example, LawReader, Protocol, fixed_words
from dpstream.randomizers.epoch_responses import EpochResponses


class EpochResponsesForecast:
    """One bit of every device at every epoch: all estimates are equally good.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    caveats: tuple[str, ...] = ()
    constants: tuple[Mapping[str, int | float], ...]

    def __init__(self, law: ResponseLaw, last_epoch: int) -> None:
        self._law = law
        self.reports_per_user = np.ones(last_epoch)
        self.constants = ({"epochs": law.last_epoch, "c_gap": law.c_gap},)

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        variance = response_variance(self._law, users)
        return np.full(len(self.reports_per_user), math.sqrt(variance))


def epoch_responses(
    name: str,
    parameters: type[Any],
    law: LawReader,
    devices: type[EpochResponses[Any]],
    forecast: Callable[[Any, int], Forecast],
    examples: tuple[Example, ...],
    *,
    loss_of_streams: bool = False,
) -> Protocol:
    """Devices that answer with one bit at every epoch."""
    return Protocol(
        name=name,
        parameters=parameters,
        calibrate=late_calibration(name),
        law=lambda asked: law,
        randomizer=devices,
        restore=devices.restore,
        aggregator=lambda law, asked: EpochResponsesAggregator(law),
        aggregator_from_bytes=lambda law, asked, data: EpochResponsesAggregator.from_bytes(
            law, data
        ),
        word_form=fixed_words(devices),
        needs_shuffle=False,
        loss_of_streams=loss_of_streams,
        forecast=lambda law, asked, last_epoch: forecast(law, last_epoch),
        examples=examples,
    )
