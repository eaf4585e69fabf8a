"""Test times in a change log: read to the microsecond, and assigned to the exact epoch."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.values.durations import Duration, parse_duration
from dpstream.pipeline.values.time_texts import TimeReader
from dpstream.pipeline.values.times import EpochCalendar, parse_time

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
