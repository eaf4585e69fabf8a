"""Durations: what is accepted, and that every instant lies in exactly one epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.values.durations import Duration, parse_duration

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
        ("1h", "PT1H"),
        ("15min", "PT15M"),
        ("7d", "P7D"),
        ("2 w", "P14D"),
        ("250 ms", "PT0.25S"),
        ("1 day", "P1D"),
        ("24h", "P1D"),
        ("24 hours", "P1D"),
        ("1 week", "P7D"),
        ("2weeks", "P14D"),
        ("90 minutes", "PT1H30M"),
        ("1 second", "PT1S"),
        ("250 milliseconds", "PT0.25S"),
        ("1 month", "P1M"),
        ("18 months", "P1Y6M"),
        ("2 years", "P2Y"),
        ("P1W", "P7D"),
        ("P1M", "P1M"),
        ("PT1M", "PT1M"),
        ("P18M", "P1Y6M"),
        ("P1Y2M3DT4H5M6.5S", "P1Y2M3DT4H5M6.5S"),
    ],
)
def test_accepted_forms_have_one_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_duration(text)) == canonical
    assert parse_duration(canonical) == parse_duration(text)


@given(durations)
def test_text_round_trip(duration: Duration) -> None:
    assert parse_duration(str(duration)) == duration


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "60",
        "5m",
        "1.5h",
        "-P1D",
        "1 fortnight",
        "PT1H30",
        "²s",
        "1 dayss",
        "2 hs",
        "1 d ay",
    ],
)
def test_anything_else_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(
        ValueError, match=re.escape("give ISO 8601 (P7D, PT1H, P1M) or a whole number")
    ):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0 s", "PT0S", "P0M"])
def test_nothing_is_not_a_length(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 0"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["P1001Y", "999999999999999w", "400000 d"])
def test_more_than_a_thousand_years_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at most 1000 years"):
        parse_duration(text)


def test_months_are_counted_from_the_start_not_from_the_epoch_before() -> None:
    month = parse_duration("P1M")
    begins = [month.epoch_start(START, epoch) for epoch in (1, 2, 3, 4)]
    assert [(b.month, b.day, b.hour) for b in begins] == [
        (1, 31, 6),
        (2, 29, 6),
        (3, 31, 6),
        (4, 30, 6),
    ]


@given(durations, st.integers(-50, 50))
def test_an_epoch_holds_its_first_instant_and_not_the_one_before(
    duration: Duration, epoch: int
) -> None:
    begins = duration.epoch_start(START, epoch)
    assert duration.epoch_of(START, begins) == epoch
    assert duration.epoch_of(START, begins - timedelta(microseconds=1)) == epoch - 1


@given(durations.filter(lambda d: d.months > 0 or d.exact > timedelta(hours=1)), instants)
def test_every_instant_lies_in_its_epoch(duration: Duration, instant: datetime) -> None:
    epoch = duration.epoch_of(START, instant)
    assert duration.epoch_start(START, epoch) <= instant < duration.epoch_start(START, epoch + 1)


def test_time_zones_do_not_matter() -> None:
    east = timezone(timedelta(hours=9))
    day, month = parse_duration("P1D"), parse_duration("P1M")
    assert day.epoch_of(START.astimezone(east), datetime(2024, 2, 1, 14, tzinfo=east)) == 1
    assert month.epoch_start(START.astimezone(east), 2) == month.epoch_start(START, 2)


def test_the_end_of_the_calendar_is_a_place_like_any_other() -> None:
    last = datetime(9999, 12, 31, 23, tzinfo=UTC)
    assert parse_duration("P1Y").epoch_of(START, last) == 9999 - 2024 + 1
    with pytest.raises(OverflowError, match="epoch 100000 begins outside"):
        parse_duration("P1M").epoch_start(START, 100_000)


def test_only_calendar_lengths_have_no_exact_one() -> None:
    assert parse_duration("P1W").timedelta() == timedelta(days=7)
    with pytest.raises(ValueError, match="P1M has no exact length"):
        parse_duration("P1M").timedelta()
