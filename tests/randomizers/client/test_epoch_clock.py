"""Test that devices and jobs use the same calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.pipeline.values.durations import Duration
from dpstream.randomizers.client.epoch_clock import EpochClock

SINCE = datetime(1970, 1, 1, tzinfo=UTC)
instants = st.datetimes(datetime(1950, 1, 1), datetime(2300, 1, 1)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=UTC)
)
lengths = st.tuples(
    st.integers(0, 30), st.just(0) | st.integers(0, 10**6) | st.integers(0, 10**10)
).filter(any)


def milliseconds(moment: datetime) -> int:
    return (moment - SINCE) // timedelta(milliseconds=1)


@given(instants, lengths, instants, st.integers(1, 40))
def test_devices_and_jobs_compute_the_same_epochs(
    start: datetime, length: tuple[int, int], moment: datetime, epoch: int
) -> None:
    months, exact = length
    duration = Duration(months, timedelta(milliseconds=exact))
    clock = EpochClock(milliseconds(start), months, exact, 4, 1, None)
    begins = milliseconds(duration.epoch_start(start, epoch))
    assert clock.begins(epoch) == begins
    assert clock.epoch_at(begins) == epoch
    assert clock.epoch_at(begins - 1) == epoch - 1
    assert clock.epoch_at(milliseconds(moment)) == duration.epoch_of(start, moment)


def test_epoch_numbers_restart_in_each_horizon() -> None:
    clock = EpochClock(0, 0, 1000, 4, 3, 9)
    assert [clock.horizon(epoch) for epoch in (1, 4, 5, 8, 9)] == [0, 0, 1, 1, 2]
    assert [clock.local(epoch) for epoch in (1, 4, 5, 8, 9)] == [1, 4, 1, 4, 1]
    assert [epoch for epoch in range(12) if clock.has(epoch)] == [3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "parts",
    [
        (0, 0, 0, 4, 1, None),
        (0, -1, 5, 4, 1, None),
        (0, 0, 5, 0, 1, None),
        (0, 0, 5, 4, 0, None),
        (0, 0, 5, 4, 3, 2),
        (0.5, 0, 5, 4, 1, None),
        (0, True, 5, 4, 1, None),
        (10**18, 0, 5, 4, 1, None),
    ],
)
def test_invalid_calendar_is_rejected(parts: tuple[int, int, int, int, int, int | None]) -> None:
    with pytest.raises(ValueError, match="epoch"):
        EpochClock(*parts)
