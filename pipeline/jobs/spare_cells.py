"""Spare cells of private attributes, which a running job can give to new values.

``plan: {values: [free, pro], spare: 2}`` has the cells none, other, free, pro and two spare ones.
When the job is deployed again with the value team, team gets the first spare cell from a public
epoch on. The mechanism has the same cells, in the same order, so neither its constants nor its
guarantee change: a device whose value moves from other to team has made one of its changes. At
every epoch, the values that a name moves depend on the names published before it. For each sequence
of reports the names are therefore fixed, and a bound on the ratio of probabilities holds.

A row counts with the values that are named at its own epoch. So a row of an earlier epoch remains
other, in whatever epoch and by whatever producer it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.job_files import Job, validate
from dpstream.pipeline.jobs.job_problems import JobError, Problem, shown
from dpstream.pipeline.jobs.measure_keys import SPARE, AttributeKeys
from dpstream.pipeline.jobs.measured_jobs import read_measured
from dpstream.pipeline.values.panels import PanelDomain

NEVER_SHOWN = np.iinfo(np.int64).max


def as_deployed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON values of a job with the names that its spare cells had at deployment."""
    attributes, names = dict[str, Any](), dict[str, str]()
    for name, keys in (values.get("attributes") or {}).items():
        named = len(keys.get("named", ()))
        declared = keys["values"][: len(keys["values"]) - named] if named else keys.get("values")
        attributes[name] = keys
        if named:
            others = {key: each for key, each in keys.items() if key != "named"}
            attributes[name] = {
                **others,
                "values": declared,
                "spare": keys.get("spare", 0) + named,
            }
            for number, label in enumerate(keys["values"][len(declared) :], start=1):
                names[f"{name}={label}"] = f"{name}={SPARE.format(number)}"
    if not names:
        return values
    parameters = dict(values["parameters"])
    parameters["questions"] = [
        each | {"labels": [_renamed(label, names, len(each["by"])) for label in each["labels"]]}
        if each.get("by")
        else each
        for each in parameters["questions"]
    ]
    return {**values, "attributes": attributes, "parameters": parameters}


def _renamed(label: str, names: Mapping[str, str], attributes: int) -> str:
    answer, *others = label.rsplit(",", attributes)
    return ",".join((answer, *(names.get(other, other) for other in others)))


def with_names_of(running: Job, job: Job, start: Callable[[], int] | None = None) -> Job:
    """Return a job file's job with the values that name spare cells of a running job.

    A value of the file that the running job does not have yet is named from the epoch `start()` on;
    without `start`, attributes with other values stay as they are. Raises `JobError` if the values
    do not continue those of the running job, or if it lacks spare cells for them.
    """
    found = dict(_attributes(running, job, start))
    if not found:
        return job
    values = job.to_json()
    attributes = {name: keys.model_dump(mode="json") for name, keys in found.items()}
    values = {**values, "attributes": {**values["attributes"], **attributes}}
    return validate(Job, _with_labels(values))


def _with_labels(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a job with the labels of cells that its attributes have."""
    keys = read_measured(values)
    labels = {
        (each.name, tuple(name for name, _ in each.attributes)): list(each.labels)
        for each in keys.questions
    }
    questions = [
        each | {"labels": labels[each["name"], (*each["by"],)]} if each.get("by") else each
        for each in values["parameters"]["questions"]
    ]
    return {**values, "parameters": {**values["parameters"], "questions": questions}}


def _attributes(
    running: Job, job: Job, start: Callable[[], int] | None
) -> Iterator[tuple[str, AttributeKeys]]:
    for name, before in (running.attributes or {}).items():
        after = (job.attributes or {}).get(name)
        if after is None or not (before.spare or before.named):
            continue
        more = after.values[len(before.values) :]
        if start is None and after.values != before.values:
            continue
        if after.values[: len(before.values)] != before.values:
            raise _rejected(
                name,
                f"is {shown(list(after.values))}, but running job {running.name} has "
                f"{shown(list(before.values))}, and its cells keep their values. Add new values "
                "at the end",
            )
        if len(more) > before.spare:
            raise _rejected(
                name,
                f"has {len(more)} new values, but running job {running.name} has {before.spare} "
                "spare cells left. Use fewer values, deploy the file under another name, or "
                "replace the job with --replace, which is charged again",
            )
        left, reserved = before.spare - len(more), before.spare + len(before.named)
        if after.spare in (left, reserved) and not after.named:
            named = {**before.named}
            named |= dict.fromkeys(more, _first_epoch(running, name, more, start) if more else 0)
            keys = after.model_copy(update={"spare": left, "named": named})
            if keys != after:
                yield name, keys


def _first_epoch(
    running: Job, name: str, more: tuple[str, ...], start: Callable[[], int] | None
) -> int:
    assert start is not None
    epoch, last = start(), running.last_epoch
    if last is not None and epoch > last:
        raise _rejected(
            name,
            f"names {', '.join(more)}, which could count from epoch {epoch:,} on, but running job "
            f"{running.name} ends with epoch {last:,}. Deploy the file under another name",
        )
    return epoch


def _rejected(name: str, message: str) -> JobError:
    return JobError([Problem(("attributes", name, "values"), message)])


def new_names(before: Job, after: Job) -> dict[str, tuple[str, ...]]:
    """Return the values by attribute that the second job has and the first one lacks."""
    attributes = before.attributes or {}
    more = {
        name: tuple(value for value in keys.values if value not in attributes[name].values)
        for name, keys in (after.attributes or {}).items()
        if name in attributes
    }
    return {name: values for name, values in more.items() if values}


def naming_lines(before: Job, after: Job) -> Iterator[str]:
    """Yield a line for each attribute of which the second job names more values."""
    for name, values in new_names(before, after).items():
        keys = (after.attributes or {})[name]
        yield (
            f"attributes.{name}.values: {', '.join(values)} in a spare cell from epoch "
            f"{keys.named[values[0]]:,} on, until then among other; spare cells left: {keys.spare}"
        )


def first_shown(job: Job) -> NDArray[np.int64]:
    """Return the first epoch at which each row of the results is shown, int64, shape (rows,).

    Rows of spare cells without a value have `NEVER_SHOWN`.
    """
    attributes, domain = job.attributes or {}, job.domain
    assert isinstance(domain, PanelDomain)
    starts = {
        (name, value): start
        for name, keys in attributes.items()
        for value, start in (
            *keys.named.items(),
            *dict.fromkeys(keys.reserved, NEVER_SHOWN).items(),
        )
    }
    return np.array(
        [
            max((starts.get(pair, 1) for pair in row.attributes.items()), default=1)
            for row in domain.rows
        ],
        np.int64,
    )
