"""Yes or no by answers at few epochs of a horizon; trusted party: none. Entry and forecast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.change_errors import ChangeErrors, RetainedErrors, SampledChanges
from dpstream.aggregators.epoch_responses import SampledResponseAggregator
from dpstream.aggregators.window_errors import IndependentWindows
from dpstream.pipeline.protocols.late_calibration import late, late_calibration
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    fixed_format,
)
from dpstream.randomizers.sampled_response import (
    SampledResponse,
    SampledResponseLaw,
    SampledResponseParameters,
)

_unit_variance = late("sampled_response", "unit_variance")
_calibrate = late("sampled_response", "calibrate")


class SampledResponseForecast:
    """Forecast when all enrolled devices answer at their epochs: all epochs are alike."""

    def __init__(
        self, law: SampledResponseLaw, requested: SampledResponseParameters, last_epoch: int
    ) -> None:
        self._law, self._share = law, requested.share
        self.reports_per_user = np.full(last_epoch, law.reports / law.last_epoch)
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {
                "epochs": law.last_epoch,
                "answers": law.reports,
                "c_gap": law.c_gap,
                "epsilon": law.flips.loss,
            },
        )
        worst = math.sqrt(_unit_variance(law, 0.5) / _unit_variance(law, self._share))
        self.notes = (
            f"errors are predicted for a value that {self._share:.3g} of the users have; at 0.5 "
            f"they are {worst:.3g} times as large",
            *self._limited_by_recurrence(requested),
        )

    def _limited_by_recurrence(self, requested: SampledResponseParameters) -> Iterator[str]:
        if requested.reports is not None:
            return
        once = _calibrate(requested, self._law.last_epoch)
        if once.reports > self._law.reports:
            ratio = math.sqrt(
                _unit_variance(self._law, self._share) / _unit_variance(once, self._share)
            )
            yield (
                "a recurring job asks each device once in a horizon; without epochs.renew it would "
                f"ask {once.reports} times, and errors would be {ratio:.3g} times smaller"
            )

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        variance = users * _unit_variance(self._law, self._share, users)
        return np.full(len(self.reports_per_user), math.sqrt(variance))


def _recurring(requested: SampledResponseParameters) -> SampledResponseParameters:
    if requested.reports not in (None, 1):
        raise ValueError(
            f"reports is {requested.reports}; expected 1 in a recurring job: the answers of a "
            "device share one distribution of noise, so epochs of two horizons together would "
            "cost more than epsilon. Remove reports, or epochs.renew"
        )
    return replace(requested, reports=1)


def _changes(law: SampledResponseLaw, requested: object, lag: int) -> ChangeErrors | None:
    if law.reports == 1 and lag % law.last_epoch == 0:
        # The same devices answer, with independent flips: too wide where their values persist.
        return RetainedErrors(lag, kept=0.0)
    # None if some devices answer at both epochs: their flips are correlated.
    twice = {(later - each) % law.last_epoch for later in law.offsets for each in law.offsets}
    return None if lag % law.last_epoch in twice else SampledChanges(lag)


def _window_changes(law: SampledResponseLaw, window: int, lag: int) -> ChangeErrors | None:
    longest = law.last_epoch // law.reports
    if law.reports == 1 and window <= longest and lag * window % law.last_epoch == 0:
        # The same devices answer in both windows, with independent flips.
        return RetainedErrors(lag, kept=0.0)
    # No device answers twice in both windows and the epochs between them.
    return SampledChanges(lag, window) if (lag + 1) * window <= longest else None


PROTOCOL = Protocol(
    name="sampled_response",
    parameters=SampledResponseParameters,
    law=lambda requested: SampledResponseLaw,
    calibrate=late_calibration("sampled_response"),
    message_format=fixed_format(SampledResponse),
    randomizer=SampledResponse,
    aggregation=Aggregation.of(
        SampledResponseAggregator,
        changes=_changes,
        window_errors=lambda law, requested: IndependentWindows(),
        window_changes=_window_changes,
    ),
    planning=Planning(SampledResponseForecast),
    recurring=_recurring,
    sampled=lambda law: Fraction(law.reports, law.last_epoch),
    examples=(
        Example(SampledResponseParameters(1.0), 4),
        Example(SampledResponseParameters(2.0, 2), 3),
        Example(SampledResponseParameters(4.0, 3), 3),
    ),
)
