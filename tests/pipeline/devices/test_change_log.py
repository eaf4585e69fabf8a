"""Test change logs: the latest value placed in an epoch holds until it changes."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.devices.change_log import ChangeLog, load_change_log
from dpstream.pipeline.values.durations import Duration, parse_duration
from dpstream.pipeline.values.time_texts import TimeReader
from dpstream.pipeline.values.times import EpochCalendar, parse_time
from tests.support.changes_per_user import changes_per_user

START = datetime(2024, 1, 31, tzinfo=UTC)
LAST_EPOCH = 6


@dataclass(frozen=True)
class Row:
    user: str
    when: int | datetime
    value: int


def place(when: int | datetime, calendar: EpochCalendar) -> int:
    return when if isinstance(when, int) else calendar.epoch_of(when)


def first_of_contradicting(rows: list[Row]) -> list[Row]:
    kept: list[Row] = []
    for row in rows:
        same = [other for other in kept if (other.user, other.when) == (row.user, row.when)]
        if all(other.value == row.value for other in same):
            kept.append(row)
    return kept


def slow_values(rows: list[Row], calendar: EpochCalendar) -> dict[str, list[int]]:
    """Return every user's value at the end of every epoch, scanning all rows for each value."""
    in_time = [row for row in rows if place(row.when, calendar) <= LAST_EPOCH]
    values = {}
    for user in {row.user for row in rows}:
        values[user] = [0] * LAST_EPOCH
        for epoch in range(1, LAST_EPOCH + 1):
            so_far = [
                (row.when, row.value)
                for row in in_time
                if row.user == user and place(row.when, calendar) <= epoch
            ]
            values[user][epoch - 1] = max(so_far)[1] if so_far else 0
    return values


def assert_log_is(log: ChangeLog, values: dict[str, list[int]]) -> None:
    assert list(log.users) == sorted(values)
    expected = np.array([values[user] for user in log.users], np.int8).reshape(-1, LAST_EPOCH)

    replayed = np.full(len(log.users), log.initial, np.int8)
    changes = np.zeros(len(log.users), int)
    assert log.values_at(0).tolist() == replayed.tolist()
    for epoch in range(1, LAST_EPOCH + 1):
        users, now = log.changes_at(epoch)
        assert np.all(np.diff(users) > 0), "a user changes at most once per epoch"
        assert np.all(replayed[users] != now), "a change has a new value"
        replayed[users] = now
        changes[users] += 1
        assert replayed.tolist() == expected[:, epoch - 1].tolist()
        assert log.values_at(epoch).tolist() == expected[:, epoch - 1].tolist()

    assert log.ground_truth().dtype == np.int64
    assert log.ground_truth().tolist() == expected.sum(axis=0).tolist()
    histogram = changes_per_user(log)
    assert histogram.tolist() == [np.sum(changes == c) for c in range(changes.max(initial=0) + 1)]
    assert log.epochs.dtype == log.user_indices.dtype == np.dtype(np.int32)
    assert len(log.epochs) == changes.sum()


any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5)
users = any_text | st.sampled_from(
    ["ann", "bob", 'a "quoted", name', "two\nlines", "two\r\nlines", " ", "é", "🙂"]
)
lengths = st.sampled_from(["P7D", "PT1H", "P1D", "P1M", "P1M2D", "PT0.000003S"])


@st.composite
def logs(
    draw: st.DrawFn, *, contradictions: bool
) -> tuple[list[Row], EpochCalendar, Callable[[int | datetime], str], str]:
    calendar = EpochCalendar(START, parse_duration(draw(lengths)))
    some_users = draw(st.lists(users, min_size=1, max_size=4, unique=True))
    column = draw(st.sampled_from(["epoch", "time"]))
    zone = draw(st.sampled_from(["", "Z", "unix"]))
    whens: st.SearchStrategy[int | datetime]

    def write(when: int | datetime) -> str:
        if isinstance(when, int):
            return str(when)
        if zone == "unix":
            return f"{(when - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1):.6f}"
        return when.replace(tzinfo=None).isoformat() + zone

    if column == "epoch":
        whens = st.integers(-3, LAST_EPOCH + 3)
    else:
        # Boundaries and the microseconds around them, and anything in between.
        boundaries = st.integers(-1, LAST_EPOCH + 2).map(calendar.start_of)
        near = st.integers(-1, 1).map(lambda n: timedelta(microseconds=n))
        whens = st.builds(lambda moment, step: moment + step, boundaries, near) | st.datetimes(
            datetime(2023, 12, 1), datetime(2024, 9, 1), timezones=st.just(UTC)
        )
    rows = draw(
        st.lists(
            st.builds(Row, st.sampled_from(some_users), whens, st.integers(0, 1)),
            min_size=1,
            max_size=25,
            unique_by=None if contradictions else lambda row: (row.user, row.when),
        ).filter(lambda rows: any(place(row.when, calendar) <= LAST_EPOCH for row in rows))
    )
    return rows, calendar, write, column


@st.composite
def files(draw: st.DrawFn, rows: list[Row], write: Callable[..., str], column: str) -> bytes:
    names = draw(st.permutations(["user", column, "value", "note"][: draw(st.integers(3, 4))]))
    spell: Callable[[str], str] = draw(st.sampled_from([str.lower, str.title, str.upper]))
    text = io.StringIO(newline="")
    writer = csv.writer(
        text,
        lineterminator=draw(st.sampled_from(["\n", "\r\n"])),
        # Python 3.11 fails to quote a carriage return.
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        if not any("\r" in row.user for row in rows)
        else csv.QUOTE_ALL,
    )
    writer.writerow([spell(name) for name in names])
    for row in rows:
        fields = {"user": row.user, column: write(row.when), "value": row.value, "note": ""}
        writer.writerow([fields[name] for name in names])
        text.write("\n" * draw(st.integers(0, 1)))
    data = text.getvalue().encode(draw(st.sampled_from(["utf-8", "utf-8-sig"])))
    return gzip.compress(data, 1) if draw(st.booleans()) else data


@given(st.data())
def test_change_log_matches_a_naive_parser(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows, calendar, write, column = data.draw(logs(contradictions=True))
    path = tmp_path_factory.getbasetemp() / "log"
    path.write_bytes(data.draw(files(rows, write, column)))
    log = load_change_log(path, calendar=calendar, last_epoch=LAST_EPOCH, skip_bad_rows=True)
    late = [row for row in rows if place(row.when, calendar) > LAST_EPOCH]
    in_time = [row for row in rows if row not in late]
    kept = first_of_contradicting(in_time)
    assert_log_is(log, slow_values(kept + late, calendar))
    assert log.bad_rows.total == len(in_time) - len(kept)


def load(folder: Path, text: str, last_epoch: int | None = LAST_EPOCH) -> ChangeLog:
    path = folder / "members.csv"
    path.write_text(text, encoding="utf-8")
    calendar = EpochCalendar(START, parse_duration("P7D"))
    return load_change_log(path, calendar=calendar, last_epoch=last_epoch)


def test_rows_before_epoch_1_set_the_initial_value(
    tmp_path: Path,
) -> None:
    log = load(tmp_path, "user,epoch,value\nann,-2,0\nann,0,1\nbob,0,1\nbob,1,0\n")
    assert log.values_at(1).tolist() == [1, 0]
    assert log.warnings == (
        f"{tmp_path}/members.csv: 3 rows before epoch 1: used as initial values",
    )


def test_error_points_out_epoch_numbers_that_were_read_as_times(tmp_path: Path) -> None:
    for second, pointed_out in (("2", True), (START.isoformat(), False)):
        log = load(tmp_path, f"user,time,value\nann,1,1\nbob,{second},1\n")
        assert pointed_out == ("use --column epoch=NAME instead" in " ".join(log.warnings))


def test_rows_after_the_last_epoch_enroll_their_users(tmp_path: Path) -> None:
    log = load(tmp_path, "user,epoch,value\nann,1,1\nann,7,0\nbob,7,1\n")
    assert log.users == ("ann", "bob")
    assert log.ground_truth().tolist() == [1] * LAST_EPOCH
    assert log.warnings == (
        f"{tmp_path}/members.csv: 2 rows after epoch 6: not used (the first: line 3, user 'ann')",
    )


def test_row_without_a_value_before_the_start_enrolls_its_user(tmp_path: Path) -> None:
    log = load(tmp_path, "user,epoch,value\nann,0,\nann,0,1\nbob,-2, \nzoe,2,1\n")
    assert (log.users, log.bad_rows.total) == (("ann", "bob", "zoe"), 0)
    assert log.values_at(2).tolist() == [1, 0, 1]
    assert log.warnings == (
        f"{tmp_path}/members.csv: 1 row before epoch 1: used as initial values",
    )


def test_change_log_without_a_last_epoch_ends_at_its_last_row(tmp_path: Path) -> None:
    log = load(tmp_path, "user,epoch,value\nann,2,1\nbob,9,0\n", last_epoch=None)
    assert (log.last_epoch, log.ground_truth().tolist()) == (9, [0] + [1] * 8)


between = (datetime(2, 1, 1), datetime(9998, 12, 31))
moments = st.datetimes(*between) | st.datetimes(*between, timezones=st.timezones())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01", 0),
        ("1970-01-01 00:00:01", 1),
        ("1970-01-01T00:00:01.5Z", Fraction(3, 2)),
        ("1970-W01-4", 0),
        ("1970-01-01T01:00+01:00", 0),
        ("1969-12-31T23:00-01:00", 0),
        (" 1 ", 1),
        ("-1.5", Fraction(-3, 2)),
        ("1.7e+09", 1_700_000_000),
        ("20240101", 20_240_101),
        # Truncated, not rounded: a row never moves into an epoch that it has not reached.
        ("1.9999999", Fraction(1_999_999, 1_000_000)),
        ("-0.0000001", Fraction(-1, 1_000_000)),
        ("1970-01-01T00:00:00.9999999", Fraction(999_999, 1_000_000)),
    ],
)
def test_iso_and_unix_times_are_parsed(text: str, seconds: int | Fraction) -> None:
    assert parse_time(text) == seconds * 1_000_000


@pytest.mark.parametrize(
    "text", ["", "now", "2024-", "2024-13-01", "nan", "inf", "1_000", "١٢", "1e999999999", "0x10"]
)
def test_other_time_formats_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is invalid; expected ISO 8601 .* or unix seconds$"):
        parse_time(text)


@pytest.mark.parametrize("text", ["1700000000000", "-99999999999999", "0001-01-01T00:00+01:00"])
def test_times_outside_the_calendar_are_rejected_with_the_likely_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"outside the years 1 to 9999.*not milliseconds"):
        parse_time(text)


@given(st.decimals(-(10**10), 10**11, places=9).map(lambda number: f"{number:f}"))
def test_unix_times_are_parsed_exactly_to_microseconds(text: str) -> None:
    assert parse_time(text) == math.floor(Fraction(text) * 1_000_000)


durations = st.sampled_from(
    [parse_duration(text) for text in ("P7D", "P1W", "PT1H", "P1D", "P1M", "P3M", "P1Y", "P1M3D")]
) | st.builds(Duration, exact=st.timedeltas(timedelta(microseconds=1), timedelta(days=400)))


def test_earliest_and_latest_times_are_assigned_to_epochs() -> None:
    ends = np.array([parse_time("0001-01-01"), parse_time("9999-12-31T23:59:59.999999")])
    months = EpochCalendar(datetime(2024, 1, 31, tzinfo=UTC), parse_duration("P1M"))
    assert months.epochs_of(ends).tolist() == [-24_276, 95_712]


def test_date_without_hyphens_is_not_a_unix_time() -> None:
    dates = ["20240501", "19991231", "21000229"]
    found = TimeReader().parse(dates)
    assert list(found.problems) == [0, 1, 2]
    assert found.problems[0].startswith(
        "time '20240501' is ambiguous: a date or unix seconds. Set the time format to %Y%m%d"
    )
    # A number is not a date either.
    numbers = "20241301", "20240532", "20240500", "2024050", "202405011", "1714564800", "-2024050"
    for text in numbers:
        assert TimeReader().parse([text]).problems == {}, text
    for pattern in ("%Y%m%d", "iso"):
        (may, *_) = TimeReader(pattern).parse(dates[:1]).moments.tolist()
        assert may == parse_time("2024-05-01")
    assert TimeReader("unix").parse(dates[:1]).moments.tolist() == [20_240_501_000_000]
