"""The protocol and parameters of a job with `measures`.

If the job file names no protocol, the one with the smallest predicted error is chosen among those
that fit the question and need no other trusted party. A protocol whose intervals hold for any
number of changes is preferred if its error is at most `PREFERENCE` times as large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from dpstream.pipeline.jobs.job_files import Job, validate
from dpstream.pipeline.jobs.job_problems import JobError, Problem, explain, shown
from dpstream.pipeline.jobs.measure_keys import DEFAULT_MINIMUM, Measured, MeasuredEpochs
from dpstream.randomizers.equal_buckets import EqualBuckets
from dpstream.randomizers.measures import Measure

PLANNED_USERS: Final = 100_000
"""Number of users for which protocols are compared."""
PREFERENCE: Final = 1.1

_FEWEST_CHANGES: Final = {"boolean": 2, "mean": 2, "labels": 3, "numbers": 3}
"""Default of max_changes by kind of question: a spell of activity is two changes."""
_ANY_CHANGES: Final = frozenset({"sampled_response", "sampled_panels"})
"""Protocols whose intervals hold for any number of changes."""
_PANELS: Final = frozenset({"panels", "sampled_panels", "shuffled_panels"})


@dataclass(frozen=True, slots=True)
class Choice:
    """A protocol that fits a job's question.

    Attributes:
        parameters: Parameters of the protocol, as in a job file.
        error: Predicted RMSE in users over all epochs, with `PLANNED_USERS` users; of panels, over
            all questions too.
    """

    protocol: str
    parameters: Mapping[str, Any]
    error: float

    @property
    def assumes_changes(self) -> bool:
        """True if intervals assume at most `max_changes` changes per user."""
        return self.protocol not in _ANY_CHANGES


def with_measures(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a job file's values with a protocol and all its parameters, derived from `measures`.

    Values that are already complete, such as those of a deployed job, are returned unchanged.
    Raises `JobError` for measures, attributes or breakdowns that cannot be.
    """
    given = values.get("parameters")
    if values.get("measures") is None or not isinstance(given, Mapping):
        return values
    if values.get("protocol") is not None and {"domain", "questions"} & given.keys():
        return values
    keys = read_measured(values)
    changes = given.get("max_changes")
    if changes is None:
        changes = _fewest_changes(keys)
    if changes == 1 and any(each.measure.type == "active" for each in keys.questions):
        raise _rejected(
            "parameters",
            "max_changes",
            message="is 1, but a spell of activity is two changes, because every device begins as "
            "inactive; expected at least 2",
        )
    values = {**values, "parameters": {**given, "max_changes": changes}}
    if values.get("protocol") is not None:
        return _with_named_protocol(values, keys)
    chosen = choices(values, keys)[0]
    return {**values, "protocol": chosen.protocol, "parameters": chosen.parameters}


def choices(values: Mapping[str, Any], keys: Measured) -> list[Choice]:
    """Return the protocols that fit the questions of a job file, the best one first.

    The parameters in `values` are epsilon, max_changes and, if the shuffler is trusted, delta.
    Raises `JobError` if a protocol cannot have these parameters.
    """
    fitting = _fitting(values, keys)
    if len(fitting) == 1:
        return [Choice(*each, 0.0) for each in fitting.items()]
    found = [
        Choice(protocol, parameters, _error(values, protocol, parameters))
        for protocol, parameters in fitting.items()
    ]
    return sorted(found, key=lambda each: each.error * (PREFERENCE if each.assumes_changes else 1))


def _fewest_changes(keys: Measured) -> int:
    if keys.trust == "shuffle" and any(each.kind == "mean" for each in keys.questions):
        # Numbers are followed wherever they move, at little more noise.
        return max(2, keys.epochs.count)
    return max(_FEWEST_CHANGES[each.kind] for each in keys.questions)


def reason(job: Job) -> str | None:
    """Say why a job's protocol fits its measures better than others; None if only one fits."""
    if job.measures is None:
        return None
    question, values = job.questions[0], job.to_json()
    changes = getattr(job.parameters, "max_changes", None)
    if changes is None:
        changes = _fewest_changes(job)
    elif job.protocol not in _PANELS and question.kind in ("labels", "numbers"):
        changes += 1
    given = ("epsilon", "delta")
    asked = {name: getattr(job.parameters, name) for name in given if hasattr(job.parameters, name)}
    found = choices(values | {"parameters": {**asked, "max_changes": changes}}, job)
    others = [_accuracy(each) for each in found if each.protocol != job.protocol]
    own = next((_accuracy(each) for each in found if each.protocol == job.protocol), None)
    if own is None or not others:
        return None
    return (
        f"measures and trust: {job.trust or 'none'} allow {len(found)} protocols; with "
        f"{PLANNED_USERS:,} users the predicted RMSE is {own}, which this job uses, and "
        f"{' and '.join(others)}. To choose yourself, set 'protocol'"
    )


def _accuracy(choice: Choice) -> str:
    assumed = "any number of changes; max_changes has no effect"
    if choice.assumes_changes:
        assumed = f"max_changes: {choice.parameters['max_changes']}"
    return f"{choice.error:,.0f} users for {choice.protocol} ({assumed})"


def read_measured(values: Mapping[str, Any]) -> Measured:
    """Return the keys about events of a job's values; raise `JobError` if they are invalid."""
    measures = values["measures"]
    problems = list(_problems(measures)) if isinstance(measures, Mapping) else []
    if problems:
        raise JobError(problems)
    subset = {name: values[name] for name in MeasuredEpochs.model_fields if name in values}
    try:
        return MeasuredEpochs.model_validate_json(json.dumps(subset))
    except ValidationError as error:
        raise JobError(explain(error, MeasuredEpochs)) from None


def _problems(measures: Mapping[str, Any]) -> Iterator[Problem]:
    for name, keys in measures.items():
        try:
            Measure.from_json(keys)
        except ValueError as error:
            key, quoted, rest = str(error).removeprefix("'").partition("' ")
            if quoted and isinstance(keys, Mapping) and key in keys:
                yield Problem(("measures", name, key), rest)
            else:
                yield Problem(("measures", name), str(error))


def _with_named_protocol(values: Mapping[str, Any], keys: Measured) -> Mapping[str, Any]:
    """Return values with the parameters that the named protocol needs for the job's questions."""
    protocol, given = values["protocol"], values["parameters"]
    panels = _fitting_panels(values, keys) if protocol in _PANELS else {}
    fitting = _fitting(values, keys) | panels
    if protocol not in fitting:
        raise _rejected(
            "protocol",
            message=f"{shown(protocol)} does not fit the measures with trust: "
            f"{keys.trust or 'none'}; expected {' or '.join(fitting)}. Or remove the key",
        )
    others = {key: value for key, value in given.items() if key != "max_changes"}
    return {**values, "parameters": {**others, **fitting[protocol]}}


def _fitting(values: Mapping[str, Any], keys: Measured) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of each protocol that fits the questions of a job, by protocol."""
    question = keys.questions[0]
    if keys.panels > 1 or question.kind == "mean":
        return _fitting_panels(values, keys)
    asked: Mapping[str, Any] = values["parameters"]
    epsilon = {"epsilon": asked.get("epsilon")}
    # Having no item yet is not an item, so the first item is no change.
    later = {**epsilon, "max_changes": asked["max_changes"] - 1}
    domain: dict[str, Any] = {"domain": list(question.labels)}
    buckets = question.measure.buckets
    if isinstance(buckets, EqualBuckets):
        domain = {"low": buckets.low, "high": buckets.high, "buckets": buckets.count}
    if values.get("trust") == "shuffle":
        shuffled = {**asked, "dummies": "shuffle"}
        if question.kind == "labels":
            shuffled |= {**domain, "cells": "count_min"}
        elif question.kind == "numbers":
            shuffled |= {"domain": domain}
        return {"shuffled_counts": shuffled}
    match question.kind:
        case "labels":
            complete = {} if question.measure.can_be_none else {"complete": True}
            return {
                "sampled_response": {**epsilon, **domain, **complete},
                "hadamard_values": {**later, **domain},
            }
        case "numbers":
            return {
                "sampled_response": {**epsilon, **domain},
                "range_values": {**later, **domain},
            }
        case _:
            return {"sampled_response": epsilon, "value_stream": {**asked}}


def _fitting_panels(values: Mapping[str, Any], keys: Measured) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of each kind of panels; raise `JobError` for a question without any."""
    parameters = _panels(values, keys)
    if keys.trust == "shuffle":
        return {"shuffled_panels": parameters}
    others = {name: value for name, value in parameters.items() if name != "max_changes"}
    return {"sampled_panels": others, "panels": parameters}


def _panels(values: Mapping[str, Any], keys: Measured) -> Mapping[str, Any]:
    if keys.trust == "shuffle" and any(each.kind == "labels" for each in keys.questions):
        raise _rejected(
            "trust",
            message="is shuffle, which supports either one measure without public attributes, or "
            "several yes/no measures and means without private attributes. Remove the key, or use "
            "one job for each measure",
        )
    questions = []
    for question in keys.questions:
        if question.kind == "numbers":
            raise _rejected(
                "measures",
                question.name,
                message="has buckets of equal width, which require a job of their own. List the "
                "edges as in 'buckets: [0, 10, 20]', or ask for a mean",
            )
        mean = question.measure.mean
        questions.append(
            {
                "name": question.name,
                "answer": question.kind,
                **({} if mean is None else {"low": mean.low, "high": mean.high}),
                **({"labels": list(question.labels)} if question.kind == "labels" else {}),
                **(
                    {"by": [name for name, _ in question.attributes]} if question.attributes else {}
                ),
            }
        )
    return {
        **values["parameters"],
        "questions": questions,
        "groups": [{"attributes": group} for group in keys.groups] if keys.groups[0] else [],
        "by": [list(each) for each in keys.public_breakdowns],
        "by_minimum": keys.by_minimum or DEFAULT_MINIMUM,
    }


def _error(values: Mapping[str, Any], protocol: str, parameters: Mapping[str, Any]) -> float:
    """Return the root mean square of the predicted standard errors of all epochs."""
    left_out = {*Measured.model_fields, "input", "devices"}
    others = {key: value for key, value in values.items() if key not in left_out}
    job = validate(Job, {**others, "protocol": protocol, "parameters": parameters})
    planning = job.protocol_entry.planning
    assert planning is not None
    forecast: Any = planning.forecast(job.calibrate(), job.parameters, job.epochs.count)
    if protocol in _PANELS:
        return math.sqrt(float(np.square(forecast.question_rmses(PLANNED_USERS)).mean()))
    return math.sqrt(float(np.square(forecast.standard_errors(PLANNED_USERS)).mean()))


def _rejected(*path: str, message: str) -> JobError:
    return JobError([Problem(path, message)])
