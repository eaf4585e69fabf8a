"""Predicted errors of measures for all users, and for groups of several sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np

from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.measure_keys import MOST_CELLS, Question
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.results.expected_errors import forecast_of


@dataclass(frozen=True, slots=True)
class GroupError:
    """Predicted RMSE of a measure in a group of `users` users.

    Attributes:
        rmse: In users; for a mean, in the unit of its number.
        relative: As a share of the group; for a mean, of the range.
    """

    users: int
    rmse: float
    relative: float


@dataclass(frozen=True, slots=True)
class MeasureErrors:
    """Predicted errors of one question.

    Attributes:
        name: Name of the measure, with the private attributes that its cells distinguish.
        is_mean: True if errors are those of a mean.
        total: For all users; None if the question has cells only, whose sum has a larger error.
        groups: For each size of group, the largest first; empty without a breakdown.
    """

    name: str
    is_mean: bool
    total: GroupError | None
    groups: tuple[GroupError, ...]

    @property
    def sizes(self) -> tuple[GroupError, ...]:
        return self.groups if self.total is None else (self.total, *self.groups)


def measure_errors(
    job: Job, forecast: Forecast, users: int, shares: Sequence[float] = ()
) -> tuple[MeasureErrors, ...]:
    """Return the predicted errors of all questions of a job with measures.

    `shares` are the sizes of groups as shares of the users; equal by default.
    """
    if job.measures is None:
        return ()
    return tuple(_of_questions(job, forecast, users, shares))


def _of_questions(
    job: Job, forecast: Any, users: int, shares: Sequence[float]
) -> Iterator[MeasureErrors]:
    panels = job.panels > 1 or job.questions[0].measure.mean is not None
    for index, question in enumerate(job.questions):
        asked = _QuestionErrors(question, forecast, index if panels else None)
        values = math.prod(len(job.shown_values_of(name)) for name, _ in question.attributes)
        cells = len(job.groups) * values
        sizes = [round(users * share) for share in shares] or [users // cells]
        # Cells of a question have the error of all users who are asked it.
        whole = max(1, users // len(job.groups)) if question.attributes else None
        yield MeasureErrors(
            " by ".join((question.name, *(name for name, _ in question.attributes))),
            question.measure.mean is not None,
            None if question.attributes else asked.total(users),
            tuple(asked.error(size, whole) for size in sorted(sizes, reverse=True))
            if cells > 1
            else (),
        )


@dataclass(frozen=True, slots=True)
class _QuestionErrors:
    question: Question
    forecast: Any
    index: int | None

    def total(self, users: int) -> GroupError:
        if self.index is None:
            return self.error(users)
        return self._of(users, float(self.forecast.question_rmses(users)[self.index]))

    def error(self, users: int, whole: int | None = None) -> GroupError:
        """Return the error for `users` users, one group of a partition of `whole` users."""
        size = max(1, users)
        if self.index is None:
            rmse = float(np.sqrt(np.square(self.forecast.standard_errors(whole or size)).mean()))
        elif whole is None:
            rmse = self.forecast.group_rmse(self.index, size)
        else:
            # The users of a group have each answer equally often.
            share = min(1.0, size / whole) / len(self.question.answers)
            rmse = self.forecast.group_rmse(self.index, whole, share)
        return self._of(users, rmse)

    def _of(self, users: int, rmse: float) -> GroupError:
        size = max(1, users)
        mean = self.question.measure.mean
        unit = 1.0 if mean is None else (mean.high - mean.low) / size
        return GroupError(users, unit * rmse, rmse / size)


def cheaper_notes(job: Job, users: int, errors: Sequence[MeasureErrors]) -> tuple[str, ...]:
    """Name cheaper ways to ask the questions of a job with these errors."""
    return (*_public_notes(job, users), *_separate_notes(job, users, errors))


def _separate_notes(job: Job, users: int, errors: Sequence[MeasureErrors]) -> Iterator[str]:
    """Yield a note on a job for each measure, which errs less than panels at the same loss.

    The noise is the same, but panels add the error of asking a sample of the users.
    """
    if job.protocol != "shuffled_panels" or (measures := len(job.questions)) == 1:
        return
    asked: Any = job.parameters
    variant = {key: value for key, value in job.to_json().items() if key in _SEPARATED}
    variant["measures"] = dict([next(iter(variant["measures"].items()))])
    parameters = {
        "epsilon": asked.epsilon / measures,
        "delta": asked.delta / measures,
        "max_changes": asked.max_changes,
    }
    one = make_job({**variant, "parameters": parameters})
    (alone,) = measure_errors(one, forecast_of(one, one.calibrate()), users)
    together = errors[0]
    assert alone.total is not None
    assert together.total is not None
    shown = "{:,.3g}" if alone.is_mean else f"{{:,.0f}} {job.people}"
    yield (
        f"each of the {measures} measures is asked of a part of the {job.people}. Give each a job "
        f"of its own with epsilon {parameters['epsilon']:.3g} and delta "
        f"{parameters['delta']:.2g}: at the same total privacy loss, {alone.name} has an RMSE of "
        f"{shown.format(alone.total.rmse)} instead of {shown.format(together.total.rmse)}"
    )


def _public_notes(job: Job, users: int) -> tuple[str, ...]:
    private = [question for question in job.questions if question.attributes]
    if job.measures is None or job.trust == "shuffle" or not private:
        return ()
    names = dict.fromkeys(name for question in private for name, _ in question.attributes)
    attributes = job.to_json()["attributes"]
    declared = [name for name in names if "first_seen" not in attributes[name]]
    if not declared:
        return ()
    for name in declared:
        attributes[name] = {"values": attributes[name]["values"], "public": True}
    public = _varied(job, attributes)
    errors = measure_errors(public, forecast_of(public, public.calibrate()), users)
    group = next(each.groups[0] for each in errors if each.groups)
    which = " and ".join(declared)
    return (
        f"private attributes cost accuracy: if everyone may know each user's {which}, set 'public: "
        f"true', and a measure of a group of {group.users:,} users has an RMSE of "
        f"{group.rmse:,.0f} users ({group.relative:.1%} of the group)",
    )


def hidden_notes(job: Job, law: Any, errors: Sequence[MeasureErrors]) -> Iterator[str]:
    """Say which of the groups are too small to be shown at most epochs."""
    least = getattr(job.parameters, "by_minimum", None)
    if least is None:
        return
    # Sampled devices answer at few epochs; groups are counted over all questions.
    shares = [question.share for question in law.questions]
    answers = [getattr(question.law, "reports", law.last_epoch) for question in law.questions]
    answered = sum(share * each for share, each in zip(shares, answers, strict=True))
    answering = Fraction(answered, sum(shares) * law.last_epoch)
    needed = math.ceil(least / answering)
    sizes = [group.users for each in errors if each.total is not None for group in each.groups]
    if sizes and min(sizes) < needed:
        share = float(100 * answering)
        few = "" if answering == 1 else f", and {share:.2g}% of its users answer"
        yield (
            f"groups of fewer than {needed:,} users have no numbers at most epochs: a group needs "
            f"by_minimum, {least:,}, answers at an epoch{few}"
        )


def spare_notes(
    job: Job, users: int, errors: Sequence[MeasureErrors], shares: Sequence[float]
) -> Iterator[str]:
    """Say how many cells of each attribute are spare, and what they cost.

    `errors` are those of the job for groups with these shares of the users.
    """
    spare = {name: keys.spare for name, keys in (job.attributes or {}).items() if keys.spare}
    if not spare:
        return
    attributes = job.to_json()["attributes"]
    for name in spare:
        del attributes[name]["spare"]
    others = _varied(job, attributes)
    fewer = measure_errors(others, forecast_of(others, others.calibrate()), users, shares)
    cell, without = (
        next(each.groups[0].rmse for each in found if each.groups) for found in (errors, fewer)
    )
    for name, count in spare.items():
        cells = max(each.cells for each in job.questions if name in dict(each.attributes))
        yield (
            f"attributes.{name} has {count:,} spare cell{'s' * (count > 1)}, for values named "
            f"later. With them, a question has {cells:,} of {MOST_CELLS:,} possible cells, and the "
            f"RMSE of a cell is {cell:,.0f} {job.people}; without spare cells, "
            f"{without:,.0f}"
        )


def _varied(job: Job, attributes: dict[str, Any]) -> Job:
    """Return a job with other attributes, and the protocol that follows from them."""
    variant = {key: value for key, value in job.to_json().items() if key in _VARIED}
    parameters = {name: getattr(job.parameters, name, None) for name in ("epsilon", "max_changes")}
    asked = {name: value for name, value in parameters.items() if value is not None}
    return make_job({**variant, "attributes": attributes, "parameters": asked})


_VARIED: Final = ("name", "epochs", "measures", "by")
_SEPARATED: Final = (*_VARIED, "attributes", "trust", "shuffle")
