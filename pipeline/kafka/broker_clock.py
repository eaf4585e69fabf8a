"""The broker's clock, as far as its acknowledgements tell.

Every topic takes LogAppendTime: whoever has a record acknowledged learns what the broker's clock
said when it was written. Between two acknowledgements a clock that nobody sets goes on from there,
so that it does not matter what this machine's own clock says, or whether somebody sets it. A clock
of its own that is off is named as such.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from dpstream.pipeline.jobs.epoch_times import CLOCK_TOLERANCE
from dpstream.pipeline.values.durations import roughly


def own_milliseconds() -> int:
    """This machine's own clock, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_seconds() -> float:
    """Seconds of any origin, of a clock that nobody sets and that runs while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class _Reading:
    """The broker's milliseconds, when they arrived, and how long their record was on its way."""

    milliseconds: int
    arrived: float
    travelled: float


class BrokerClock:
    """What the broker's clock says now; unknown before the first acknowledgement.

    A reading is the moment of writing, and is taken for that of its arrival: this clock is behind
    the broker's by the way back, and never ahead of it.

    Args:
        own: this machine's clock, milliseconds since 1970.
        steady: seconds of any origin, never set.

    >>> clock = BrokerClock(own=lambda: 7_200_000, steady=lambda: 5.0)
    >>> clock.now() is None
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
        """The moment at which a record sets out, for `note`."""
        return self._steady()

    def note(self, milliseconds: int, sent: float) -> None:
        """A record that set out at `sent` was written at this time by the broker's clock."""
        arrived = self._steady()
        self._reading = _Reading(milliseconds, arrived, max(0.0, arrived - sent))

    def now(self) -> int | None:
        """Milliseconds since 1970 by the broker's clock; None while it is not known."""
        reading = self._reading
        if reading is None:
            return None
        return reading.milliseconds + int(1000 * (self._steady() - reading.arrived))

    def milliseconds(self) -> int:
        """The same, by this machine's own clock while the broker's is not known."""
        now = self.now()
        return self._own() if now is None else now

    def moment(self) -> datetime:
        """`milliseconds` as a moment in UTC."""
        return datetime.fromtimestamp(self.milliseconds() / 1000, UTC)

    def ahead(self) -> float | None:
        """By how many seconds this machine's own clock is ahead, at least; negative if behind.

        None while the broker's is not known.
        """
        now, reading = self.now(), self._reading
        if now is None or reading is None:
            return None
        most = (self._own() - now) / 1000
        return max(0.0, most - reading.travelled) if most > 0 else most

    def problem(self) -> str | None:
        """A sentence if this machine's own clock is off by more than the tolerance."""
        ahead = self.ahead()
        if ahead is None or abs(ahead) <= CLOCK_TOLERANCE:
            return None
        return f"this machine's clock is {off_by(ahead)} the broker's"


def off_by(ahead: float) -> str:
    """How far a clock is off, before "the broker's".

    >>> off_by(3_000), off_by(-7_200)
    ('50 min ahead of', '2 h behind')
    """
    return f"{roughly(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"
