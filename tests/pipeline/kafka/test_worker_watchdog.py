"""Test that the watchdog ends workers that could make progress but do not, and no others."""

import pytest

from dpstream.pipeline.kafka.workers.timings import Timings
from dpstream.pipeline.kafka.workers.watchdog import EventLoopHeartbeat, Watchdog

TIMINGS = Timings(blocked=30, unrestored=60, stalled=120)
LONG = 1000


def idle(work: int = 0) -> EventLoopHeartbeat:
    return EventLoopHeartbeat(restored=True, broker_answers=True, work=work)


def first_fault(heartbeat: EventLoopHeartbeat, seconds: int = LONG) -> tuple[int, str] | None:
    watchdog = Watchdog(TIMINGS)
    for second in range(seconds):
        watchdog.beat(heartbeat)
        fault = watchdog.check(1.0)
        if fault is not None:
            return second, fault
    return None


def test_watchdog_detects_a_stalled_event_loop() -> None:
    watchdog = Watchdog(TIMINGS)
    watchdog.beat(idle())
    assert [watchdog.check(1.0) for _ in range(31)] == [None] * 31
    assert watchdog.check(1.0) == "the event loop has been blocked for 30 s"


def test_watchdog_detects_a_stalled_restoration() -> None:
    assert first_fault(EventLoopHeartbeat(restored=False, broker_answers=True, work=0)) == (
        60,
        "partitions were not restored for 60 s although the broker answers",
    )


def test_watchdog_allows_a_long_restoration_that_progresses() -> None:
    watchdog = Watchdog(TIMINGS)
    for second in range(LONG):
        watchdog.beat(EventLoopHeartbeat(restored=False, broker_answers=True, work=second // 50))
        assert watchdog.check(1.0) is None


def test_watchdog_detects_lag_without_progress() -> None:
    fault = first_fault(
        EventLoopHeartbeat(True, True, 0, positions={0: 5, 1: 9}, ends={0: 5, 1: 10})
    )
    assert fault == (
        121,
        "partition 1 has records that were not read for 120 s although the broker answers",
    )


@pytest.mark.parametrize("restored", [True, False])
def test_watchdog_ignores_outages_of_any_length(restored: bool) -> None:
    assert (
        first_fault(EventLoopHeartbeat(restored, False, 0, positions={0: 0}, ends={0: 9})) is None
    )


@pytest.mark.parametrize("session", [1.5, 31.0])
def test_timings_that_kafka_would_reject_are_rejected(session: float) -> None:
    with pytest.raises(ValueError, match=r"at least twice the heartbeat interval \(2\.0 s\)"):
        Timings(session=session, heartbeat=1.0, request=30.0)
