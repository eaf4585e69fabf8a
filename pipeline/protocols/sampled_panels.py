"""Registry entry for sampled_panels: panels whose devices answer at few epochs of a horizon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_covariances import ItemCovariances, set_covariances
from dpstream.aggregators.sampled_panels import (
    SampledPanelChanges,
    SampledPanelsAggregator,
    SampledPanelWindows,
)
from dpstream.pipeline.protocols.late_calibration import late
from dpstream.pipeline.protocols.panels import PanelsForecast, panel_domain
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol
from dpstream.randomizers.panels import (
    PanelQuestion,
    PanelsLaw,
    QuestionLaw,
    SampledPanelDevices,
    SampledPanelsParameters,
)
from dpstream.randomizers.sampled_response import SampledResponseLaw

_calibrate = late("panels", "calibrate_sampled")
_flip_variance = late("sampled_response", "flip_variance")


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
        flips = _flip_variance(self.law, share)
        return float(np.sqrt(users * (flips / answering + absent * share * (1 - share))))


class SampledPanelsForecast(PanelsForecast):
    """Forecast in which errors of a question include those of asking a sample of the users."""

    _sampling: ClassVar[str] = (
        "a device answers one question, at the number of epochs listed as answers; predicted "
        "errors include that of sampling. They are predicted for half of the users with yes, and "
        "for a label that an equal part of the users has; in total for the question with the "
        "largest error"
    )

    def _errors(
        self, index: int, users: int, share: float, groups: int | None = None
    ) -> NDArray[np.float64]:
        forecast, asked = self._asked[index]
        error = forecast.standard_error(users, asked, share)
        return np.full(len(self.reports_per_user), error)

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


_ACTIVE = PanelQuestion("active", "boolean")
_SPENT = PanelQuestion("spent", "mean", 0.0, 10.0)
_PLACE = PanelQuestion("place", "labels", labels=("home", "work"))

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
        Example(SampledPanelsParameters(2.0, (_ACTIVE, _SPENT)), 2),
        Example(SampledPanelsParameters(2.0, (_SPENT,), reports=2), 2),
        Example(SampledPanelsParameters(2.0, (_PLACE, _ACTIVE)), 2),
    ),
)
