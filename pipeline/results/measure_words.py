"""Names of measures for readers, such as "users who were active within 4 weeks"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dpstream.pipeline.jobs.epoch_words import EpochName, period
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.roll_ups import WindowRecord
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.equal_buckets import number_text
from dpstream.randomizers.measures import Measure

PARTIAL_WINDOW: Final = "partial_window"
"""Flag: the window of the measure starts before epoch 1, where events may be missing."""


def measure_label(job: Job, name: str) -> str:
    """Return what a measure counts or averages.

    >>> from dpstream.pipeline.jobs.job_files import make_job
    >>> measures = {"used": {"type": "active", "event": "search", "within": 4}}
    >>> parameters = {"epsilon": 1}
    >>> job = {"name": "a", "epochs": {"count": 9}, "measures": measures, "parameters": parameters}
    >>> measure_label(make_job(job), "used")
    'users who had an event “search” within 4 epochs'
    """
    measure = _measure(job, name)
    within = "" if measure.within == 1 else f" within {measure.within:,} {period(job)}s"
    match measure.answer:
        case "boolean":
            return f"{job.people} who {_verb(measure)}{within}"
        case "mean":
            return f"mean {_subject(measure)} per user{within}"
    return f"{job.people} by {_subject(measure)}{within}"


def verb(job: Job, name: str) -> str:
    """Return the words after "users" for those who answer yes."""
    return _verb(_measure(job, name))


def subject(job: Job, name: str) -> str:
    """Return the noun for the number or label that a measure computes."""
    return _subject(_measure(job, name))


def during(job: Job, name: str, when: EpochName) -> str:
    """Return the window of a measure that ends with an epoch, with its preposition."""
    measure = _measure(job, name)
    if measure.within == 1:
        return when.at
    return f"in the {measure.within:,} {period(job)}s that ended with {when.name}"


def partial_epochs(job: Job, names: Iterable[str]) -> int:
    """Return the number of first epochs whose windows start before epoch 1, for any measure."""
    declared = job.measures or {}
    if job.history is not None:
        return 0
    return max((declared[name].within for name in names if name in declared), default=1) - 1


def partial_flags(job: Job, names: Iterable[str], record: EstimateRecord) -> tuple[str, ...]:
    first = record.first_epoch if isinstance(record, WindowRecord) else record.epoch
    return (PARTIAL_WINDOW,) if first <= partial_epochs(job, names) else ()


def partial_words(job: Job, names: Iterable[str]) -> str | None:
    """Say which epochs have the flag `PARTIAL_WINDOW`; None without any.

    >>> from dpstream.pipeline.jobs.job_files import make_job
    >>> measures = {"mau": {"type": "active", "within": 4}}
    >>> job = {"name": "a", "epochs": {"count": 9}, "measures": measures}
    >>> partial_words(make_job({**job, "parameters": {"epsilon": 1}}), ["mau"])
    'the first 3 epochs of mau cover less than 4 epochs of events'
    """
    found = [name for name in names if partial_epochs(job, [name])]
    texts = []
    for name in found:
        count, unit = partial_epochs(job, [name]), period(job)
        first = (
            f"first {unit} of {name} covers"
            if count == 1
            else (f"first {count:,} {unit}s of {name} cover")
        )
        texts.append(f"the {first} less than {count + 1:,} {unit}s of events")
    return ", and ".join(texts) or None


def group_words(job: Job, attributes: Mapping[str, str]) -> str:
    """Return a group of users, such as "platform ios and plan pro".

    >>> from dpstream.pipeline.jobs.job_files import Job
    >>> group_words(Job.model_construct(), {"platform": "ios", "plan": "pro"})
    'platform ios and plan pro'
    """
    return " and ".join(f"{name} {job.reads(value)}" for name, value in attributes.items())


def _measure(job: Job, name: str) -> Measure:
    assert job.measures is not None
    return job.measures[name]


def _verb(measure: Measure) -> str:
    if measure.at_least is None:
        named = _named(measure.event, "an event", "one of the events")
        return f"had {named}" if measure.event else "were active"
    least = number_text(measure.at_least)
    match measure.type:
        case "count":
            return f"had at least {least} {_events(measure)}"
        case "days":
            return f"had {_events(measure)} on at least {least} days"
    return f"had a {_subject(measure)} of at least {least}"


def _subject(measure: Measure) -> str:
    of_events = f" of {_events(measure)}" if measure.event else ""
    match measure.type:
        case "count":
            return f"number of {_events(measure)}"
        case "days":
            return f"number of days with {_events(measure)}"
        case "sum":
            return f"total {measure.number}{of_events}"
        case "max":
            return f"largest {measure.number}{of_events}"
        case "last":
            return f"latest {measure.number or measure.label}{of_events}"
        case "most":
            return f"most frequent {measure.label}{of_events}"
        case "lifecycle":
            return "life cycle"
        case "steps":
            return "last step reached"
    return "activity"


def _events(measure: Measure) -> str:
    return _named(measure.event, "events", "events") if measure.event else "events"


def _named(names: Sequence[str], one: str, several: str) -> str:
    *first, last = (f"“{name}”" for name in names or ("",))
    return f"{several} {', '.join(first)} or {last}" if first else f"{one} {last}"
