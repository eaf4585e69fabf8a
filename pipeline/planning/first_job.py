"""Write a first job file for an input, from its profile and a few answers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import time, timedelta
from pathlib import Path
from typing import Any, Final

from dpstream.pipeline.devices.bad_rows import counted
from dpstream.pipeline.errors import printable
from dpstream.pipeline.jobs.job_files import Job, parse_job
from dpstream.pipeline.jobs.measure_keys import Trust
from dpstream.pipeline.planning.first_epochs import Period, period_of
from dpstream.pipeline.planning.first_questions import (
    ACTIVE,
    EVENTS,
    VALUE,
    FirstAnswers,
    check_answers,
    questions_on_events,
    questions_on_values,
)
from dpstream.pipeline.planning.group_errors import MeasureErrors, cheaper_notes, measure_errors
from dpstream.pipeline.planning.input_profile import InputProfile, LabelColumn
from dpstream.pipeline.planning.job_plan import plan
from dpstream.pipeline.results.expected_errors import forecast_of
from dpstream.topics.names import JOB_NAME_MAX

_PLAIN: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*|\d{4}-\d\d-\d\d(T\d\d:\d\d)?", re.ASCII
)
_YAML_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_USUAL_MINIMUM: Final = 100
_LARGE_ERROR: Final = 0.1


@dataclass(frozen=True, slots=True)
class FirstJob:
    """A job file, and what its author should know."""

    text: str
    job: Job
    notes: tuple[str, ...]


def first_job(profile: InputProfile, answers: FirstAnswers, name: str) -> FirstJob:
    """Return a job file for an input.

    Raises `InputError` if the input does not have what the answers refer to.
    """
    made = _without_forecast(profile, answers, name)
    return replace(made, notes=(*made.notes, *_expected(made.job, profile, answers)))


def _without_forecast(profile: InputProfile, answers: FirstAnswers, name: str) -> FirstJob:
    check_answers(profile, answers)
    period = period_of(profile, answers.length)
    if answers.count == (VALUE,):
        sections, notes = questions_on_values(profile, answers, period)
    else:
        sections, notes = questions_on_events(profile, answers, period)
    text = "\n".join(_lines(profile, answers, period, name, sections)) + "\n"
    job = parse_job(text, source="the proposed job")
    return FirstJob(text, job, (*_notes_on_rows(profile, period), *notes))


def predicted_error(
    profile: InputProfile, answers: FirstAnswers, column: LabelColumn | None = None
) -> tuple[str, float]:
    """Return the predicted error of the first measure in words, and relative to all users.

    If `column` is given, it is the error for the largest group by this column, relative to the
    group. The errors of means are relative to their range.
    """
    job = _without_forecast(profile, answers, "proposed").job
    law, users = job.calibrate(), profile.users
    shares = [] if column is None else [next(iter(column.users.values())) / users]
    errors = measure_errors(job, forecast_of(job, law), users, shares)
    found = next(each for each in errors if each.groups or column is None)
    found = replace(found, groups=()) if column is None else replace(found, total=None)
    return f"about {_sizes(found, job.people)}", found.sizes[0].relative


def job_name(path: Path) -> str:
    """Derive a job's name from that of its input.

    >>> job_name(Path("data/Events 2026.csv.gz"))
    'events-2026'
    """
    stem = path.name.partition(".")[0].casefold()
    return re.sub(r"[^a-z0-9_]+", "-", stem).strip("-_")[:JOB_NAME_MAX].rstrip("-_") or "first-job"


def _lines(
    profile: InputProfile,
    answers: FirstAnswers,
    period: Period,
    name: str,
    sections: Mapping[str, Any],
) -> Iterator[str]:
    """Yield the lines of a job file."""
    yield f"# Written by dpstream init for {printable(Path(profile.name).name)}."
    yield f"name: {_yaml(name)}"
    yield f"title: {_yaml(', '.join(map(_title, answers.count)))}"
    epoch, epochs, _ = period.words
    yield f"# The {epochs} of the input. To publish later ones as well, set a larger count before"
    yield "# the first deployment: it costs little accuracy."
    yield f"epochs: {_yaml(_epochs(period))}"
    if "measures" in sections:
        yield "# " + _TRUSTED[answers.trust]
        yield f"trust: {answers.trust}"
    else:
        yield f"protocol: {sections['protocol']}"
    yield "# epsilon limits what all epochs together reveal about a user. max_changes suffices for"
    yield "# 19 of 20 users of the input. More changes of a user show later than they occur, unless"
    yield "# 'dpstream plan' says that max_changes has no effect."
    yield f"parameters: {_yaml(sections['parameters'])}"
    minimum = _minimum(profile.users, answers.trust)
    if minimum is not None:
        yield "# An epoch with fewer users is suppressed."
        yield f"shuffle: {{minimum: {minimum}}}"
    for key in ("measures", "attributes", "ratios"):
        if key in sections:
            yield f"{key}:"
        for each, keys in sections.get(key, {}).items():
            about = _about(key, keys, epoch, epochs)
            yield from [f"  # {about}"] if about else []
            yield f"  {each}: {_yaml(keys)}"
    if "by" in sections:
        yield f"by: {_yaml(sections['by'])}"
    written = profile.input_format.model_dump(mode="json") | sections.get("input", {})
    if period.calendar is not None and period.calendar.zone is not None:
        del written["timezone"]
    if written:
        yield f"input: {_yaml(written)}"


_TRUSTED: Final[Mapping[Trust, str]] = {
    "none": "Devices, or their gateway, add the noise: no other party is trusted.",
    "shuffle": "The shuffler and Kafka's operator are trusted. The errors are then much smaller.",
}


def _epochs(period: Period) -> dict[str, Any]:
    calendar = period.calendar
    if calendar is None:
        return {"count": period.count}
    start = calendar.local(calendar.start)
    weeks, rest = divmod(calendar.length.exact, timedelta(days=7))
    length = calendar.length
    return {
        "count": period.count,
        "start": f"{start:%Y-%m-%d}" if start.time() == time() else f"{start:%Y-%m-%dT%H:%M}",
        "length": f"P{weeks}W" if weeks and not rest and not length.months else str(length),
        **({} if calendar.zone is None else {"timezone": calendar.zone.key}),
    }


def _title(what: str) -> str:
    return {ACTIVE: "Active users", EVENTS: "Events per user", VALUE: "Users by value"}.get(
        what, f"{what} per user"
    )


def _about(key: str, keys: Mapping[str, Any], epoch: str, epochs: str) -> str:
    if key == "ratios":
        return ""
    if key == "attributes":
        return "everyone may know it; from the user list" if keys.get("public") else "private"
    within = keys.get("within", 1)
    when = f"in the {epoch}" if within == 1 else f"in the last {within} {epochs}"
    if keys["type"] == "active":
        return f"users with an event {when}"
    what = "events" if keys["type"] == "count" else f"the sum of {keys['number']}"
    return f"{'mean of ' if 'mean' in keys else ''}{what} of a user {when}"


def _minimum(users: int, trust: Trust) -> int | None:
    """Return the minimum of a window to write, or None for the default."""
    if trust == "none" and users >= _USUAL_MINIMUM:
        return None
    return max(1, 10 ** int(math.log10(half)) * int(str(half)[0])) if (half := users // 2) else 1


def _yaml(value: Any) -> str:
    """Format a value in the flow style of YAML.

    >>> _yaml({"type": "active", "event": ["a b", "no", "x, y"], "high": 2.0})
    '{type: active, event: [a b, "no", "x, y"], high: 2}'
    """
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:.12g}" if abs(value) >= 1e-4 or not value else f"{value:.1e}"
        case str():
            plain = _PLAIN.fullmatch(value) and value.casefold() not in _YAML_WORDS
            return value if plain else json.dumps(value, ensure_ascii=False)
        case Mapping():
            items = (f"{_yaml(str(key))}: {_yaml(each)}" for key, each in value.items())
            return f"{{{', '.join(items)}}}"
        case _:
            return f"[{', '.join(map(_yaml, value))}]"


def _notes_on_rows(profile: InputProfile, period: Period) -> Iterator[str]:
    if profile.bad:
        yield (
            f"{counted(profile.bad)} without a readable user or time: correct them, or add "
            "--skip-bad-rows"
        )
    if period.outside:
        yield (
            f"{counted(period.outside)} far outside the other times: the epochs do not cover them"
        )
    if profile.zoneless and profile.input_format.timezone is None:
        yield (
            f"{counted(profile.zoneless, 'time')} without a time zone: read as UTC. For another "
            "one, use --timezone, such as --timezone Europe/Berlin"
        )
    if len(profile.moments) and (period.epochs < 1).any() and not profile.has_times:
        yield "rows before epoch 1 are values to begin with"


def _expected(job: Job, profile: InputProfile, answers: FirstAnswers) -> Iterator[str]:
    """Yield sentences on the accuracy of a job with as many users as the input has."""
    users, people = profile.users, job.people
    if job.measures is not None:
        errors = measure_errors(job, forecast_of(job, job.calibrate()), users)
        yield from cheaper_notes(job, users, errors)
        yield from (_expected_of(each, people) for each in errors)
        largest = max(size.relative for each in errors for size in each.sizes)
    else:
        made = plan(job, users)
        largest = made.rmse / users
        yield (
            f"predicted error of a number of {people}: about {made.rmse:,.0f} of {users:,} "
            f"({largest:.1%}) with {made.protocol}"
        )
    if largest > _LARGE_ERROR:
        better = [
            *(["ask fewer questions (--count, --by)"] if job.panels > 1 else []),
            *(["trust the shuffler (--trust shuffle)"] if answers.trust == "none" else []),
            "use it for more users",
        ]
        yield f"this is a large error. To reduce it, {', or '.join(better)}"
    if users < _USUAL_MINIMUM:
        yield f"{users:,} {people} are few: the noise hides them all. This is a trial, not a use"


def _expected_of(measure: MeasureErrors, people: str) -> str:
    """Return a sentence on the errors of a measure.

    >>> from dpstream.pipeline.planning.group_errors import GroupError
    >>> total, group = GroupError(400, 20, 0.05), GroupError(100, 10, 0.1)
    >>> _expected_of(MeasureErrors("wau", False, total, (group,)), "users")
    'predicted error of wau: about 20 of 400 users (5.0%), 10 of 100 users (10.0%)'
    >>> _expected_of(MeasureErrors("minutes", True, GroupError(400, 3, 0.05), ()), "users")
    'predicted error of minutes: about 3 for 400 users (5.0% of the range)'
    """
    return f"predicted error of {measure.name}: about {_sizes(measure, people)}"


def _sizes(measure: MeasureErrors, people: str) -> str:
    return ", ".join(
        f"{size.rmse:,.3g} for {size.users:,} {people} ({size.relative:.1%} of the range)"
        if measure.is_mean
        else f"{size.rmse:,.0f} of {size.users:,} {people} ({size.relative:.1%})"
        for size in measure.sizes
    )
