"""The broker's clock, derived from acknowledgements.

Every topic uses LogAppendTime, so an acknowledgement contains the broker's write time. Until the
next acknowledgement, a monotonic clock measures the time since that write. The result does not
depend on this machine's wall clock, and an error in the wall clock is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from dpstream.pipeline.jobs.epoch_times import CLOCK_TOLERANCE
from dpstream.pipeline.values.durations import roughly


def own_milliseconds() -> int:
    return time.time_ns() // 1_000_000


def steady_seconds() -> float:
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class _Reading:
    milliseconds: int
    arrived: float
    traveled: float


class BrokerClock:
    """Current time by the broker's clock; unknown before the first acknowledgement.

    It lags behind the broker's clock by the network delay, and is never ahead of it. `own` returns
    this machine's clock in milliseconds since 1970, and `steady` the seconds of a monotonic clock.

    >>> clock = BrokerClock(own=lambda: 7_200_000, steady=lambda: 5.0)
    >>> clock.now() is None  # prose: ok
    True
    >>> clock.note(0, sent=4.9)
    >>> clock.now(), clock.problem()
    (0, "this machine's clock is 2 h ahead of the broker's")
    """

    def __init__(
        self,
        own: Callable[[], int] = own_milliseconds,
        steady: Callable[[], float] = steady_seconds,
    ) -> None:
        self._own = own
        self._steady = steady
        self._reading: _Reading | None = None

    def begin(self) -> float:
        return self._steady()

    def note(self, milliseconds: int, sent: float) -> None:
        arrived = self._steady()
        self._reading = _Reading(milliseconds, arrived, max(0.0, arrived - sent))

    def now(self) -> int | None:
        """Return the broker's clock in milliseconds since 1970; None while unknown."""
        reading = self._reading
        if reading is None:
            return None
        return reading.milliseconds + int(1000 * (self._steady() - reading.arrived))

    def milliseconds(self) -> int:
        """Return `now`, or this machine's own clock while the broker's is unknown."""
        now = self.now()
        return self._own() if now is None else now

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.milliseconds() / 1000, UTC)

    def ahead(self) -> float | None:
        """Return the minimum seconds that this machine's clock is ahead; negative if behind."""
        now, reading = self.now(), self._reading
        if now is None or reading is None:
            return None
        most = (self._own() - now) / 1000
        return max(0.0, most - reading.traveled) if most > 0 else most

    def problem(self) -> str | None:
        ahead = self.ahead()
        if ahead is None or abs(ahead) <= CLOCK_TOLERANCE:
            return None
        return f"this machine's clock is {off_by(ahead)} the broker's"


def off_by(ahead: float) -> str:
    """Describe a clock's error in words that fit before "the broker's".

    >>> off_by(3_000), off_by(-7_200)
    ('50 min ahead of', '2 h behind')
    """
    return f"{roughly(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"
