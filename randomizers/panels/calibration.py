"""Calibrate the mechanism of panels from a job's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dpstream.randomizers.panels import (
    AnswerLaw,
    AskedPanels,
    PanelQuestion,
    PanelsLaw,
    PanelsParameters,
    QuestionLaw,
    SampledPanelsParameters,
    ShuffledPanelsParameters,
)
from dpstream.randomizers.sampled_response import SampledResponseParameters
from dpstream.randomizers.sampled_response.calibration import calibrate as sampled_response
from dpstream.randomizers.set_systems import MOST_VALUES
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import (
    calibrate as shuffled_value_stream,
)
from dpstream.randomizers.value_stream import ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate as value_stream
from dpstream.randomizers.value_stream.hadamard_values import HadamardValuesParameters
from dpstream.randomizers.value_stream.hadamard_values.calibration import (
    calibrate as hadamard_values,
)

SHARE: Final = 0.5
"""Share of yes with the largest error, for which the number of answers is chosen."""


def calibrate(parameters: PanelsParameters, last_epoch: int) -> PanelsLaw:
    """Calibrate the mechanism of a job: every question's, with all of epsilon.

    An answer starts from nothing, and `max_changes` counts all of its changes. A Boolean and a mean
    start at 0, from which `value_stream` counts. The first label of `hadamard_values` is free: a
    user without a label at first can even make one more change.

    >>> questions = PanelQuestion("active", "boolean"), PanelQuestion("used", "boolean")
    >>> law = calibrate(PanelsParameters(1.0, 2, questions), last_epoch=12)
    >>> [question.law.max_changes for question in law.questions]
    [2, 2]
    """
    return _calibrated(parameters, lambda question: _law_of(parameters, question, last_epoch))


def calibrate_sampled(parameters: SampledPanelsParameters, last_epoch: int) -> PanelsLaw:
    """Calibrate for devices that answer at few epochs: every question, with all of epsilon.

    >>> questions = PanelQuestion("active", "boolean"), PanelQuestion("used", "boolean")
    >>> law = calibrate_sampled(SampledPanelsParameters(4.0, questions), last_epoch=12)
    >>> [question.law.reports for question in law.questions]
    [4, 4]
    """

    def law_of(question: PanelQuestion) -> AnswerLaw:
        epsilon, reports, labels = parameters.epsilon, parameters.reports, question.labels
        if not labels:
            return sampled_response(SampledResponseParameters(epsilon, reports, SHARE), last_epoch)
        reports = 1 if len(labels) >= MOST_VALUES else reports
        asked = SampledResponseParameters(epsilon, reports, domain=labels)
        return sampled_response(asked, last_epoch)

    return _calibrated(parameters, law_of)


def calibrate_shuffled(
    parameters: ShuffledPanelsParameters, last_epoch: int, minimum: int
) -> PanelsLaw:
    """Calibrate for answers that the shuffler sums; the noise does not depend on `minimum`.

    A user's messages are in the sums of a single panel, so every panel's noise is that of one sum.
    """
    asked = ShuffledCountsParameters(
        parameters.epsilon, parameters.delta, parameters.max_changes, dummies="shuffle"
    )
    law = shuffled_value_stream(asked, last_epoch, minimum)
    return PanelsLaw(
        parameters.partition,
        tuple(QuestionLaw(each.answer, each.share, law) for each in parameters.questions),
    )


def _calibrated(parameters: AskedPanels, law_of: Callable[[PanelQuestion], AnswerLaw]) -> PanelsLaw:
    """Return the constants of a job; questions with the same labels have the same ones."""
    laws: dict[tuple[str, ...], AnswerLaw] = {}
    for question in parameters.questions:
        if question.labels not in laws:
            laws[question.labels] = law_of(question)
    return PanelsLaw(
        parameters.partition,
        tuple(
            QuestionLaw(question.answer, question.share, laws[question.labels])
            for question in parameters.questions
        ),
    )


def _law_of(parameters: PanelsParameters, question: PanelQuestion, last_epoch: int) -> AnswerLaw:
    epsilon, max_changes = parameters.epsilon, parameters.max_changes
    if question.labels:
        return hadamard_values(
            HadamardValuesParameters(epsilon, max_changes, question.labels), last_epoch
        )
    return value_stream(ValueStreamParameters(epsilon, max_changes), last_epoch)
