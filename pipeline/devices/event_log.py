"""Event logs: rows of events, and the values of a job's questions that follow from them.

A file has one row per event, in any order: ``user`` and ``time`` or ``epoch``, and the columns that
the job's measures and private attributes use. Rows never contradict each other: several rows of a
user in an epoch are several events. Rows before epoch 1 are history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from dpstream.pipeline.devices.bad_rows import InputError, counted
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.measured_events import ClampedNumbers, Events, Integers, changes_of
from dpstream.pipeline.devices.row_reader import RowReader
from dpstream.pipeline.devices.tables import InputTable, read_table
from dpstream.pipeline.devices.users import Roster
from dpstream.pipeline.values.durations import Duration
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.pipeline.values.times import EpochCalendar, iso_time, shown
from dpstream.randomizers.event_histories import DAY
from dpstream.randomizers.measures import OTHER

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.input_formats import InputFormat
    from dpstream.pipeline.jobs.job_files import Job
    from dpstream.pipeline.jobs.measure_keys import Question
    from dpstream.pipeline.values.event_rows import EventDomain


def load_event_log(
    job: Job,
    path: str | PathLike[str],
    *,
    last_epoch: int | None = None,
    to_last_row: bool = False,
    skip_bad_rows: bool = False,
    users: Collection[str] | None = None,
    input_format: InputFormat | None = None,
) -> ChangeLog:
    """Read events from a plain or gzip file, and return how the values of questions change.

    With several questions, values have shape (changes, questions). Arguments and errors are those
    of `load_change_log`; for a job with public attributes, `users` is a `Roster`. Raises
    `InputError`, too, if rows have epochs but the job needs times.
    """
    read, events = read_events(
        *(job, path),
        last_epoch=last_epoch,
        to_last_row=to_last_row,
        users=users,
        input_format=input_format,
    )
    warnings = [*read.warnings, *history_warnings(job, read)]
    warnings += read.check(read.bad_rows, skip=skip_bad_rows)
    domain = job.domain
    dtype = np.int64 if domain.columns is not None else domain.parse([])[0].dtype
    before = np.full((len(read.users), *domain.shape), domain.initial, dtype)
    groups = groups_in(job, read.users, users)
    clamped = ClampedNumbers(job)
    values_now = clamped.counting(values_by_epoch(job, events, read.last_epoch))
    epochs, indices, values = changes_of(values_now, before)
    warnings += clamped.warnings()
    return ChangeLog(
        users=read.users,
        epochs=epochs,
        user_indices=indices,
        values=values,
        last_epoch=read.last_epoch,
        initial=domain.initial,
        bad_rows=read.bad_rows,
        warnings=tuple(f"{read.name}: {warning}" for warning in warnings),
        on_user_list=read.on_user_list,
        unknown_users=read.unknown_users,
        groups=None if groups is None else np.array(groups, np.int64),
    )


def read_events(
    job: Job,
    path: str | PathLike[str],
    *,
    last_epoch: int | None,
    to_last_row: bool = False,
    users: Collection[str] | None = None,
    input_format: InputFormat | None = None,
    domain: EventDomain | None = None,
) -> tuple[InputTable, Events]:
    input_format = job.input_format if input_format is None else input_format
    domain = job.event_domain if domain is None else domain
    reader = RowReader(domain, job.epochs.calendar, input_format)
    read = read_table(path, reader, last_epoch, to_last_row=to_last_row, users=users)
    table = read.table
    events = Events.of(
        domain,
        len(read.users),
        epochs=table.epochs,
        users=table.users,
        moments=table.positions,
        days=days_of(job.epochs.calendar, table.positions),
        fields=domain.at_epochs(table.values, table.epochs),
    )
    return read, events


def groups_in(job: Job, users: Sequence[str], roster: Collection[str] | None) -> list[int] | None:
    """Return the number of each user's public group, or None for a job without public attributes.

    Undeclared values count as `other`. Raises `InputError` without a user list that has them, and
    for texts that are not times of enrollment.
    """
    columns = job.public_columns
    if not columns:
        return None
    attributes = job.attributes or {}
    dated = any(attributes[name].enrolled is not None for name in columns)
    if not isinstance(roster, Roster):
        raise InputError(
            f"job {job.name} has the public attributes {', '.join(columns)}, which do not come "
            "from events: list all users with --users FILE, a CSV with the columns user, "
            f"{', '.join(columns.values())}"
            + (
                ""
                if dated
                else ". 'dpstream preview JOB --input FILE --write-users FILE' writes one"
            )
        )
    domain = job.domain
    assert isinstance(domain, PanelDomain)
    texts = {
        name: _periods(job, name, roster, column)
        if attributes[name].enrolled is not None
        else [text if text in attributes[name].values else OTHER for text in roster.columns[column]]
        for name, column in columns.items()
    }
    rows = (dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True))
    numbers = dict(zip(roster.users, map(domain.group_of, rows), strict=True))
    return [numbers[user] for user in users]


def _periods(job: Job, name: str, roster: Roster, column: str) -> list[str]:
    """Return the period in which each user was enrolled, from times in a user list."""
    calendar, found = job.epochs.calendar, dict[str, str]()
    zone = None if calendar is None else calendar.zone
    for user, text in zip(roster.users, roster.columns[column], strict=True):
        if text in found:
            continue
        try:
            moment = iso_time(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=zone or UTC)
            found[text] = job.period_of(name, moment)
        except (ValueError, OverflowError) as error:
            late = str(error) if str(error).startswith("is after") else "is not a date"
            raise InputError(
                f"user list: user {shown(user)} has {shown(text)} in column {column}, which "
                f"{late}; expected the date on which the user was enrolled, such as 2026-01-31"
            ) from None
    return [found[text] for text in roster.columns[column]]


def days_of(calendar: EpochCalendar | None, moments: Integers) -> Integers:
    """Return the calendar days of times in microseconds, in the calendar's zone."""
    if calendar is None or calendar.zone is None:
        return moments // DAY
    first = datetime(1970, 1, 1, tzinfo=calendar.zone)
    return EpochCalendar(first, Duration(exact=timedelta(days=1)), calendar.zone).epochs_of(moments)


def values_by_epoch(job: Job, events: Events, last_epoch: int) -> Iterator[Integers]:
    """Yield the values of all questions at epochs 1, 2, ...: int64, shape (users, questions).

    A job whose values are single integers has shape (users,).
    """
    streams = [_values(job, question, events, last_epoch) for question in job.questions]
    for values in zip(*streams, strict=True):
        yield values[0] if job.domain.columns is None else np.stack(values, axis=1)


def _values(job: Job, question: Question, events: Events, last_epoch: int) -> Iterator[Integers]:
    answers = events.answers(question.measure, last_epoch)
    if not question.attributes:
        yield from answers
        return
    digits = [_attribute(job, name, events, last_epoch) for name, _ in question.attributes]
    for answer, *others in zip(answers, *digits, strict=True):
        cell = answer
        for (_, values), digit in zip(question.attributes, others, strict=True):
            cell = cell * len(values) + digit
        yield cell + 1


def _attribute(job: Job, name: str, events: Events, last_epoch: int) -> Iterator[Integers]:
    """Yield the number of every user's value of an attribute, as in `Job.values_of`."""
    keys, values = (job.attributes or {})[name], job.values_of(name)
    if keys.first_seen is None:
        column = keys.column or name
        numbers = np.array(events.domain.numbers_of_labels(column, values))
        for labels in events.latest_labels(column, last_epoch):
            yield numbers[labels]
        return
    first, moments = events.firsts(keys.event)
    periods = np.zeros(events.count, np.int64)
    seen = np.flatnonzero(first <= last_epoch)
    periods[seen] = job.period_calendar(name).epochs_of(moments[seen])
    numbers = np.clip(periods, 0, len(values) - 2) + 1
    for epoch in range(1, last_epoch + 1):
        yield np.where(first <= epoch, numbers, 0)


def history_warnings(job: Job, read: InputTable) -> Iterator[str]:
    epochs = read.table.epochs
    if before := int(np.count_nonzero(epochs < 1)):
        yield f"{counted(before)} before epoch 1: used as history"
    longest = max((measure.within for measure in (job.measures or {}).values()), default=1)
    first = int(epochs.min(initial=1))
    if len(epochs) and longest > 1 and first > 2 - longest and job.history is None:
        row = "no row is before epoch 1" if first == 1 else f"the first row is in epoch {first}"
        yield (
            f"{row}, so windows of {longest} epochs are complete from "
            f"epoch {first + longest - 1} on. Add earlier rows, or set 'history: complete' if "
            "there were no events before"
        )
