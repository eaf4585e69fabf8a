"""Registry entry and forecast for panels: several questions and public groups of users."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.panel_changes import PanelChanges, PanelWindows
from dpstream.aggregators.panels import PanelsAggregator
from dpstream.pipeline.protocols.change_limits import ChangeLimit, change_limit
from dpstream.pipeline.protocols.followed_forecasts import (
    HadamardValuesForecast,
    ValueStreamForecast,
)
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Aggregation, Example, Planning, Protocol
from dpstream.pipeline.protocols.shuffled_forecasts import ShuffledValueStreamForecast
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.randomizers.panels import (
    AskedPanels,
    PanelDevices,
    PanelQuestion,
    PanelsLaw,
    PanelsParameters,
    QuestionLaw,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStreamLaw
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesLaw


class PanelsForecast:
    """Forecast of the totals of the question with the largest error."""

    def __init__(self, law: PanelsLaw, parameters: AskedPanels, last_epoch: int) -> None:
        self.reports_per_user = np.ones(last_epoch)
        self._questions, self._groups = law.questions, law.groups
        total = sum(question.share for question in law.questions)
        self._asked = [
            (self._of_question(question, last_epoch), question.share / total)
            for question in law.questions
        ]
        self.constants = tuple(
            {"question": number, "share": share, **forecast.constants[0]}
            for number, (forecast, share) in enumerate(self._asked, start=1)
        )
        notes = dict.fromkeys(note for forecast, _ in self._asked for note in forecast.notes)
        self.notes = (*self._sampling_notes(), *notes)

    def standard_errors(self, users: int) -> NDArray[np.float64]:
        errors = self.question_errors(users)
        return np.asarray(errors[:, errors.mean(axis=0).argmax()], np.float64)

    def question_errors(self, users: int) -> NDArray[np.float64]:
        """Return the standard errors of each question's number of users, (epochs, questions)."""
        shares = map(expected_share, self._questions)
        errors = [self._errors(index, users, share) for index, share in enumerate(shares)]
        return np.stack(errors, axis=1)

    def question_rmses(self, users: int) -> NDArray[np.float64]:
        """Return the RMSE of each question's number of users, (questions,)."""
        return np.asarray(np.sqrt(np.square(self.question_errors(users)).mean(axis=0)), np.float64)

    def group_rmse(self, question: int, users: int, share: float | None = None) -> float:
        """Return the RMSE of the number of users in one group with an answer.

        A `share` of them has it, by default the expected one.
        """
        if share is None:
            share = expected_share(self._questions[question])
        return float(np.sqrt(np.square(self._errors(question, users, share, groups=1)).mean()))

    def _errors(
        self, index: int, users: int, share: float, groups: int | None = None
    ) -> NDArray[np.float64]:
        """Return the standard errors of one question's number of users, (epochs,).

        By default, the users are in all groups, and each group's sum has noise of its own if the
        shuffler sums the answers. Otherwise, the noise is that of the users.
        """
        question, (forecast, asked) = self._questions[index], self._asked[index]
        # The thresholds of a mean add the part of all users.
        thresholds = question.answer == "mean" and isinstance(question.law, ValueStreamLaw)
        sampling = users * share * (1 - share) * (1 / asked - (not thresholds))
        noise = forecast.standard_errors(max(1, round(users * asked))) / asked
        if isinstance(question.law, ShuffledValueStreamLaw):
            noise = noise * math.sqrt(self._groups if groups is None else groups)
        return np.asarray(np.hypot(noise, math.sqrt(sampling)), np.float64)

    def _sampling_notes(self) -> Iterator[str]:
        if len(self._questions) > 1:
            yield sampling_note("each question is asked of a sample of the users")

    def _of_question(self, question: QuestionLaw, last_epoch: int) -> Any:
        law = question.law
        if isinstance(law, HadamardValuesLaw):
            return HadamardValuesForecast(law, last_epoch)
        if isinstance(law, ShuffledValueStreamLaw):
            return ShuffledValueStreamForecast(law, last_epoch, numbers=question.answer == "mean")
        assert isinstance(law, ValueStreamLaw)
        return ValueStreamForecast(law, last_epoch)


def sampling_note(asked: str) -> str:
    return (
        f"{asked}; predicted errors include that of sampling. They are predicted for half of the "
        "users with yes, and for a label that an equal part of the users has; in total for the "
        "question with the largest error"
    )


def expected_share(question: QuestionLaw) -> float:
    """Return the share of users with an answer for which errors are predicted: 1 / D for labels."""
    return 1 / question.largest if question.answer == "labels" else 0.5


def _change_limit(law: PanelsLaw, requested: PanelsParameters, epochs: int) -> ChangeLimit | None:
    booleans: list[Any] = [
        each.law.booleans if isinstance(each.law, HadamardValuesLaw) else each.law
        for each in law.questions
    ]
    boost = max(boolean.boost for boolean in booleans)
    return change_limit(requested.max_changes, epochs, "delayed", boost=boost)


def panel_domain(requested: AskedPanels) -> PanelDomain:
    return PanelDomain(requested.questions, requested.groups, requested.rows)


# Questions of the examples of all kinds of panels.
ACTIVE: Final = PanelQuestion("active", "boolean")
SPENT: Final = PanelQuestion("spent", "mean", 0.0, 10.0)
PLACE: Final = PanelQuestion("place", "labels", labels=("home", "work"))
_USED: Final = PanelQuestion("used", "boolean", share=2)

PROTOCOL = Protocol(
    name="panels",
    parameters=PanelsParameters,
    law=lambda requested: PanelsLaw,
    calibrate=late_calibration("panels"),
    randomizer=PanelDevices,
    aggregation=Aggregation(
        PanelsAggregator,
        PanelsAggregator.from_bytes,
        changes=PanelChanges,
        window_errors=PanelWindows,
        change_limit=_change_limit,
    ),
    planning=Planning(PanelsForecast),
    values=panel_domain,
    examples=(
        Example(PanelsParameters(2.0, 1, (ACTIVE, SPENT)), 1),
        Example(PanelsParameters(2.0, 1, (SPENT,)), 2),
        Example(PanelsParameters(2.0, 1, (PLACE, _USED)), 1),
    ),
)
