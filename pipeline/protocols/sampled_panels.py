"""Registry entry for sampled_panels: panels whose devices answer at few epochs of a horizon."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_covariances import ItemCovariances, set_covariances
from dpstream.aggregators.sampled_panels import (
    SampledPanelChanges,
    SampledPanelsAggregator,
    SampledPanelWindows,
)
from dpstream.pipeline.protocols.late_calibration import late
from dpstream.pipeline.protocols.panels import (
    ACTIVE,
    PLACE,
    SPENT,
    PanelsForecast,
    panel_domain,
    sampling_note,
)
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol
from dpstream.randomizers.panels import (
    PanelsLaw,
    QuestionLaw,
    SampledPanelDevices,
    SampledPanelsParameters,
)
from dpstream.randomizers.sampled_response import SampledResponseLaw

_calibrate = late("panels", "calibrate_sampled")


class _QuestionForecast:
    """Forecast of a question of which all devices are asked; all epochs are equally accurate."""

    notes: tuple[str, ...] = ()

    def __init__(self, question: QuestionLaw, last_epoch: int) -> None:
        law = question.law
        assert isinstance(law, SampledResponseLaw)
        self.law = law
        self.of_mean = question.answer == "mean"
        self.constants: tuple[Mapping[str, int | float], ...] = (
            {"epochs": law.last_epoch, "answers": law.reports, "c_gap": law.c_gap},
        )

    def standard_error(self, users: int, asked: float, share: float) -> float:
        """Return the error for `users` users.

        A part of them, `asked`, is asked the question; a `share` of them has the answer.
        """
        answering = asked * self.law.reports / self.law.last_epoch
        # The thresholds of a mean add the part of all users.
        absent = 1 / answering - (not self.of_mean)
        flips = self.law.flip_variance(share) / answering
        return math.sqrt(users * (flips + absent * share * (1 - share)))


class SampledPanelsForecast(PanelsForecast):
    """Forecast of questions that are asked of a sample of the users at every epoch."""

    def _errors(
        self, index: int, users: int, share: float, groups: int | None = None
    ) -> NDArray[np.float64]:
        forecast, asked = self._asked[index]
        error = forecast.standard_error(users, asked, share)
        return np.full(len(self.reports_per_user), error)

    def _sampling_notes(self) -> Iterator[str]:
        yield sampling_note(
            "a device answers one question, at the number of epochs listed as answers"
        )

    def _of_question(self, question: QuestionLaw, last_epoch: int) -> _QuestionForecast:
        return _QuestionForecast(question, last_epoch)


def _covariances(law: PanelsLaw, question: int) -> ItemCovariances:
    mechanism = law.questions[question].law
    assert isinstance(mechanism, SampledResponseLaw)
    return partial(set_covariances, mechanism, mechanism.sets)


def _recurring(requested: SampledPanelsParameters) -> SampledPanelsParameters:
    if requested.reports not in (None, 1):
        raise ValueError(
            f"reports is {requested.reports}; expected 1 in a recurring job: a device's answers "
            "share one noise distribution, so epochs in two different horizons would together cost "
            "more than epsilon. Remove 'reports', or 'epochs.renew'"
        )
    return replace(requested, reports=1)


PROTOCOL = Protocol(
    name="sampled_panels",
    parameters=SampledPanelsParameters,
    law=lambda requested: PanelsLaw,
    calibrate=lambda requested, last_epoch, minimum: _calibrate(requested, last_epoch),
    randomizer=SampledPanelDevices,
    aggregation=Aggregation(
        SampledPanelsAggregator,
        SampledPanelsAggregator.from_bytes,
        changes=SampledPanelChanges,
        window_errors=SampledPanelWindows,
        question_covariances=_covariances,
    ),
    planning=Planning(SampledPanelsForecast),
    values=panel_domain,
    recurring=_recurring,
    examples=(
        Example(SampledPanelsParameters(2.0, (ACTIVE, SPENT)), 2),
        Example(SampledPanelsParameters(2.0, (SPENT,), reports=2), 2),
        Example(SampledPanelsParameters(2.0, (PLACE, ACTIVE)), 2),
    ),
)
