"""Test lengths of epochs, and their start in every time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.values.durations import Duration, parse_duration
from dpstream.pipeline.values.times import EpochCalendar, microseconds

START = datetime(2024, 1, 31, 6, tzinfo=UTC)

durations = st.builds(
    Duration,
    st.integers(0, 30),
    st.timedeltas(timedelta(microseconds=1), timedelta(days=40)),
)
instants = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("60 s", "PT1M"),
        ("7d", "P7D"),
        ("2 w", "P14D"),
        ("24 hours", "P1D"),
        ("90 minutes", "PT1H30M"),
        ("18 months", "P1Y6M"),
        ("P1W", "P7D"),
        ("P18M", "P1Y6M"),
        ("P1Y2M3DT4H5M6.5S", "P1Y2M3DT4H5M6.5S"),
    ],
)
def test_accepted_durations_have_one_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_duration(text)) == canonical
    assert parse_duration(canonical) == parse_duration(text)


@given(durations)
def test_duration_text_round_trips(duration: Duration) -> None:
    assert parse_duration(str(duration)) == duration


@pytest.mark.parametrize(
    "text",
    ["", "P", "P1DT", "60", "5m", "1.5h", "-P1D", "PT1H30", "²s", "1 d ay"],
)
def test_invalid_duration_is_rejected_with_accepted_formats(text: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape("expected ISO 8601 (P7D, PT1H, P1M) or a whole number")
    ):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0 s", "PT0S", "P0M"])
def test_zero_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 0"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["P1001Y", "999999999999999w", "400000 d"])
def test_duration_above_a_thousand_years_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="a duration must be above 0 and at most 1000 years"):
        parse_duration(text)


def test_monthly_epochs_do_not_drift_after_short_months() -> None:
    month = parse_duration("P1M")
    begins = [month.epoch_start(START, epoch) for epoch in (1, 2, 3, 4)]
    assert [(b.month, b.day, b.hour) for b in begins] == [
        (1, 31, 6),
        (2, 29, 6),
        (3, 31, 6),
        (4, 30, 6),
    ]


@given(durations.filter(lambda d: d.months > 0 or d.exact > timedelta(hours=1)), instants)
def test_every_instant_lies_in_its_epoch(duration: Duration, instant: datetime) -> None:
    epoch = duration.epoch_of(START, instant)
    assert duration.epoch_start(START, epoch) <= instant < duration.epoch_start(START, epoch + 1)


ZONES = (
    *("Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca"),
    *("Asia/Kathmandu", "UTC"),
)
JOB = """
name: students
protocol: future_rand
parameters: {{epsilon: 4, max_changes: 4}}
epochs: {{count: 8, {calendar}}}
"""

calendars = st.builds(
    EpochCalendar,
    st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),
    st.sampled_from(["1d", "7d", "P1M", "P1Y", "6h", "P1DT7H", "P1M3D", "36h"]).map(parse_duration),
    st.sampled_from(ZONES).map(ZoneInfo),
)


@given(calendars, st.integers(1, 400))
def test_every_instant_lies_in_the_epoch_that_started_last(
    calendar: EpochCalendar, epoch: int
) -> None:
    begins, ends = calendar.start_of(epoch), calendar.start_of(epoch + 1)
    assert begins < ends
    last = ends - timedelta(microseconds=1)
    assert [calendar.epoch_of(at) for at in (begins, last, ends)] == [epoch, epoch, epoch + 1]
    moments = np.array([microseconds(at) for at in (begins, last, ends)])
    assert calendar.epochs_of(moments).tolist() == [epoch, epoch, epoch + 1]


def on_clocks(wall: datetime, zone: ZoneInfo, *, second: bool) -> datetime:
    """Return the UTC instant at which clocks show a time, found by trying nearby offsets.

    An ambiguous time has a first and a second instant; a skipped time is shifted to a later one.
    """
    about = (wall + timedelta(days=days) for days in (-2, 2))
    tried = sorted(wall - (at.replace(tzinfo=zone).utcoffset() or timedelta()) for at in about)
    moments = [moment.replace(tzinfo=UTC) for moment in tried]
    found = [at for at in moments if at.astimezone(zone).replace(tzinfo=None) == wall]
    return found[-1 if second else 0] if found else moments[-1]


def months_later(at: datetime, months: int) -> datetime:
    year, month = divmod(at.year * 12 + at.month - 1 + months, 12)
    last = (datetime(year + month // 11, (month + 1) % 12 + 1, 1) - timedelta(days=1)).day
    return at.replace(year=year, month=month + 1, day=min(at.day, last))


MIXED = {
    "P1D": (0, 1, timedelta()),
    "P7D": (0, 7, timedelta()),
    "P1DT7H": (0, 1, timedelta(hours=7)),
    "P1M": (1, 0, timedelta()),
    "P1M3D": (1, 3, timedelta()),
    "P2MT5H30M": (2, 0, timedelta(hours=5, minutes=30)),
    "PT6H": (0, 0, timedelta(hours=6)),
}


def check_starts(start: datetime, zone: ZoneInfo, length: str, epochs: int) -> None:
    """Check that every epoch starts at the expected local time, plus the exact remainder."""
    calendar = EpochCalendar(start, parse_duration(length), zone)
    months, days, rest = MIXED[length]
    clocks = start.astimezone(zone)
    for passed in range(epochs):
        wall = months_later(clocks.replace(tzinfo=None, fold=0), passed * months)
        wall += timedelta(days=passed * days)
        begins = (
            on_clocks(wall, zone, second=bool(clocks.fold))
            if months or days
            else start + passed * rest
        )
        assert calendar.start_of(passed + 1) == begins + passed * (
            rest if months or days else timedelta()
        )


@given(
    st.datetimes(datetime(1998, 1, 1), datetime(2026, 1, 1)),
    st.sampled_from(["00:00", "01:45", "02:00", "02:15", "02:30", "03:00"]),
    st.sampled_from(ZONES).map(ZoneInfo),
    st.sampled_from(sorted(MIXED)),
)
def test_epochs_start_at_local_clock_times(
    day: datetime, time: str, zone: ZoneInfo, length: str
) -> None:
    """Clocks show these times of day twice, or skip them, on some days of the year."""
    start = on_clocks(datetime.fromisoformat(f"{day:%Y-%m-%d}T{time}"), zone, second=False)
    check_starts(start, zone, length, 100 if length == "PT6H" else 400 // (1 + MIXED[length][0]))


@pytest.mark.parametrize("length", ["P1DT7H", "P1M3D"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe"])
def test_epochs_can_start_in_the_second_of_two_repeated_clock_hours(zone: str, length: str) -> None:
    half_hours = (
        datetime(2022, 1, 1, 0, 15, tzinfo=UTC) + timedelta(minutes=30) * each
        for each in range(366 * 48)
    )
    again = [at for at in half_hours if at.astimezone(ZoneInfo(zone)).fold]
    assert again
    for start in again:
        check_starts(start, ZoneInfo(zone), length, 800)


@pytest.mark.parametrize(
    ("start", "length", "epoch", "shown"),
    [
        ("2024-01-01T00:00:30", "1h", 2, "2024-01-01 01:00:30"),
        ("2024-01-01T00:00", "90s", 2, "2024-01-01 00:01:30"),
        ("2024-01-01T00:00", "P1M", 3, "2024-03-01"),
        ("2024-01-01T00:00", "P1DT7H", 3, "2024-01-03 14:00"),
    ],
)
def test_epoch_starts_are_shown_exactly(start: str, length: str, epoch: int, shown: str) -> None:
    calendar = EpochCalendar(
        datetime.fromisoformat(f"{start}+00:00"), parse_duration(length), ZoneInfo("UTC")
    )
    assert calendar.shown(epoch) == shown


def test_days_in_berlin_have_23_24_or_25_hours() -> None:
    job = parse_job(JOB.format(calendar="start: 2024-01-01, length: 1d, timezone: Europe/Berlin"))
    calendar = job.epochs.calendar
    assert calendar is not None
    starts = [calendar.start_of(epoch) for epoch in range(1, 368)]
    hours = [(after - begins) / timedelta(hours=1) for begins, after in pairwise(starts)]
    assert starts[0] == datetime(2023, 12, 31, 23, tzinfo=UTC)
    assert (hours.count(23), hours.count(24), hours.count(25)) == (1, 364, 1)


def test_timezone_changes_the_fingerprint() -> None:
    there, here = (
        deploy_job(
            parse_job(JOB.format(calendar=f"start: 2024-01-01T00:00Z, length: 1d{zone}")),
            deployed_at=0,
            deployment=bytes(16),
        )
        for zone in (", timezone: Europe/London", "")
    )
    assert there.fingerprint != here.fingerprint
    assert DeployedJob.from_bytes(there.to_bytes()) == there
    assert there.epochs.start == here.epochs.start


@pytest.mark.parametrize(
    ("calendar", "problem"),
    [
        ("start: 2024-01-01, length: 1d, timezone: Europe/Berln", "timezone"),
        ("start: 2024-01-01, length: 1d, timezone: ../../etc/passwd", "timezone"),
        ("start: 2024-01-01, length: 1d, timezone: 1", "timezone"),
        ("timezone: Europe/Berlin", "start: is missing"),
        ("start: 9999-12-25, length: 1d, timezone: Europe/Berlin", "year 9999"),
    ],
)
def test_invalid_zones_and_starts_are_rejected(calendar: str, problem: str) -> None:
    with pytest.raises(JobError, match=problem):
        parse_job(JOB.format(calendar=calendar))


def test_device_jobs_use_utc() -> None:
    text = JOB.format(calendar="start: 2024-01-01, length: 1d, timezone: Europe/Berlin")
    with pytest.raises(JobError, match=r"Remove epochs\.timezone"):
        parse_job(text + "devices: {}")


@given(
    length=st.sampled_from(["P1W", "P1D", "PT8H", "P1M", "P3M", "P1Y", "P10D", "P1M1D"]),
    span=st.sampled_from(["P1Y", "P1M", "P52W", "P18M", "P30D", "PT1H"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]),
    begins=st.datetimes(datetime(2020, 1, 31), datetime(2032, 3, 1)),
)
def test_period_never_overlaps_more_epochs_than_are_counted_for_it(
    length: str, span: str, zone: str, begins: datetime
) -> None:
    begin = begins.replace(tzinfo=UTC)
    calendar = EpochCalendar(
        datetime(2020, 1, 31, tzinfo=UTC), parse_duration(length), ZoneInfo(zone)
    )
    end = parse_duration(span).epoch_start(begin, 2) - timedelta(microseconds=1)
    overlapped = calendar.epoch_of(end) - calendar.epoch_of(begin) + 1
    assert overlapped <= parse_duration(length).most_in(parse_duration(span))


def test_leap_year_can_overlap_54_weeks() -> None:
    week, year = parse_duration("P7D"), parse_duration("P1Y")
    monday = datetime(2023, 12, 25, tzinfo=UTC)
    begin = datetime(2023, 12, 31, 23, tzinfo=UTC)
    assert week.epoch_of(monday, year.epoch_start(begin, 2)) == week.most_in(year) == 54


@pytest.mark.parametrize(
    ("span", "begin", "count"),
    [
        ("P1Y", datetime(2028, 2, 28, 23, 59, 59), 14),
        ("P6M", datetime(2031, 3, 30, 23, 59, 59), 8),
        ("P1M", datetime(2031, 3, 30, 23, 59, 59), 3),
    ],
)
def test_month_from_the_31st_can_overlap_one_more_period(
    span: str, begin: datetime, count: int
) -> None:
    month, begins = parse_duration("P1M"), begin.replace(tzinfo=UTC)
    first = datetime(2023, 1, 31, tzinfo=UTC)
    end = parse_duration(span).epoch_start(begins, 2) - timedelta(microseconds=1)
    overlapped = month.epoch_of(first, end) - month.epoch_of(first, begins) + 1
    assert overlapped == month.most_in(parse_duration(span)) == count
