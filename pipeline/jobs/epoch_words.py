"""Names of epochs for readers: dates by the job's calendar, or numbers without a calendar."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.values.durations import Duration
from dpstream.pipeline.values.times import EpochCalendar

_DAY = timedelta(days=1)
_UNITS = (
    (timedelta(days=7), "week"),
    (_DAY, "day"),
    (timedelta(hours=1), "hour"),
    (timedelta(minutes=1), "minute"),
    (timedelta(seconds=1), "second"),
)


@dataclass(frozen=True, slots=True)
class EpochName:
    """Name of an epoch, such as "the week of June 3, 2013", and the name with its preposition."""

    name: str
    at: str


def epoch_name(job: Job, epoch: int) -> EpochName:
    """Return the name of a job's epoch.

    The name of an epoch of whole days has only a date, in the job's time zone. Other names also
    have the time of day and the zone's short name.
    """
    calendar = job.epochs.calendar
    number = f"epoch {epoch:,}"
    if calendar is None:
        return EpochName(number, f"at {number}")
    try:
        return _by_the_calendar(calendar, calendar.local(calendar.start_of(epoch)))
    except OverflowError:
        return EpochName(number, f"at {number}")


def period(job: Job) -> str:
    calendar = job.epochs.calendar
    count, unit = (0, "") if calendar is None else _counted(calendar.length)
    return unit if count == 1 else "epoch"


def _by_the_calendar(calendar: EpochCalendar, begins: datetime) -> EpochName:
    count, unit = _counted(calendar.length)
    whole = at_midnight(calendar)
    date = f"{begins:%B} {begins.day}, {begins.year}"
    if (count, unit) == (1, "day") and whole:
        return EpochName(date, f"on {date}")
    if (count, unit) == (1, "month") and whole and begins.day == 1:
        return _in(f"{begins:%B} {begins.year}")
    if (count, unit) == (1, "year") and whole and (begins.month, begins.day) == (1, 1):
        return _in(f"{begins.year}")
    if not whole:
        date = f"{_time_of_day(begins)} on {date}"
    if not unit:
        return _in(f"the time from {date}")
    if count != 1:
        return _in(f"the {count:,} {unit}s from {date}")
    return _in(f"the {unit} {'of' if unit == 'week' and whole else 'from'} {date}")


def at_midnight(calendar: EpochCalendar) -> bool:
    return not calendar.length.exact % _DAY and calendar.local(calendar.start).time() == time()


def _in(name: str) -> EpochName:
    return EpochName(name, f"in {name}")


def _counted(length: Duration) -> tuple[int, str]:
    """Return a length as a count of its largest unit, such as (2, "week"); else (0, "")."""
    if length.months and length.exact:
        return 0, ""
    if length.months:
        years, rest = divmod(length.months, 12)
        return (length.months, "month") if rest else (years, "year")
    for unit, name in _UNITS:
        count, left = divmod(length.exact, unit)
        if not left:
            return count, name
    return 0, ""


def _time_of_day(moment: datetime) -> str:
    zone = moment.strftime("%Z")
    # The abbreviation of some zones is an offset, such as +03.
    zone = zone if zone[:1].isalpha() else f"UTC{zone}"
    return f"{moment:%H:%M:%S} {zone}" if moment.second else f"{moment:%H:%M} {zone}"
