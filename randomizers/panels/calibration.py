"""Calibrate the mechanism of panels from a job's parameters."""

from __future__ import annotations

from dpstream.randomizers.panels import (
    AnswerLaw,
    PanelQuestion,
    PanelsLaw,
    PanelsParameters,
    QuestionLaw,
    ShuffledPanelsParameters,
)
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
    laws: dict[tuple[str, ...], AnswerLaw] = {}
    for question in parameters.questions:
        if question.labels not in laws:
            laws[question.labels] = _law_of(parameters, question, last_epoch)
    return PanelsLaw(
        parameters.partition,
        tuple(
            QuestionLaw(question.answer, question.share, laws[question.labels])
            for question in parameters.questions
        ),
    )


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


def _law_of(parameters: PanelsParameters, question: PanelQuestion, last_epoch: int) -> AnswerLaw:
    epsilon, max_changes = parameters.epsilon, parameters.max_changes
    if question.labels:
        return hadamard_values(
            HadamardValuesParameters(epsilon, max_changes, question.labels), last_epoch
        )
    return value_stream(ValueStreamParameters(epsilon, max_changes), last_epoch)
