"""Speed and progress of a replay."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_MOVING_SECONDS = 2.0
_WAITING_SECONDS = 5.0


class ReplayProgress:
    def __init__(self, last: int, tell: Callable[[str], None]) -> None:
        self._last = last
        self._tell = tell
        self._notified_at = time.monotonic()
        self._is = f"none of the {last:,} epochs is finished yet"
        self._notified = ""

    def reached(self, epoch: int, what: str) -> None:
        self._is = f"epoch {epoch:,} of {self._last:,} is {what}"
        self._tell_after(_MOVING_SECONDS, self._is)

    def waiting(self) -> None:
        waiting = f"{self._is}; waiting for the next one"
        self._tell_after(_WAITING_SECONDS, waiting if self._notified == self._is else self._is)

    def _tell_after(self, seconds: float, text: str) -> None:
        now = time.monotonic()
        if now - self._notified_at >= seconds:
            self._notified_at, self._notified = now, self._is
            self._tell(text)


# A speed below about one epoch in twelve days is a typing error.
_SLOWEST = 1e-6


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed in epochs per second, or as a multiple of the original job's speed.

    >>> Speed.parse("2"), Speed.parse("x60"), Speed.parse("max").limited
    (Speed(per_second=2.0, times=None), Speed(per_second=None, times=60.0), False)
    """

    per_second: float | None = None
    times: float | None = None

    @classmethod
    def parse(cls, text: str) -> Speed:
        """Parse ``2`` (epochs per second), ``x60`` (multiple of the live speed) or ``max``."""
        if text == "max":
            return cls()
        try:
            speed = float(text.removeprefix("x"))
        except ValueError:
            speed = math.nan
        if not _SLOWEST <= speed < math.inf:
            raise ValueError(
                f"got {text!r}; expected epochs per second such as 2, a multiple of the "
                "live speed such as x60, or max"
            )
        return cls(times=speed) if text.startswith("x") else cls(per_second=speed)

    @property
    def limited(self) -> bool:
        return self.per_second is not None or self.times is not None


class Pace:
    def __init__(self, speed: Speed, started: float) -> None:
        self._speed = speed
        self._started = started
        self._passed = 0
        self._first: int | None = None

    def due(self, decided_at: int) -> float:
        """Return the due time of the next epoch; `decided_at` is in milliseconds since 1970.

        >>> pace = Pace(Speed.parse("x2"), started=100.0)
        >>> [pace.due(decided_at) for decided_at in (5_000, 6_000, 9_000)]
        [100.0, 100.5, 102.0]
        """
        if self._first is None:
            self._first = decided_at
        passed = self._passed
        self._passed += 1
        if self._speed.per_second is not None:
            return self._started + passed / self._speed.per_second
        if self._speed.times is not None:
            return self._started + (decided_at - self._first) / 1000 / self._speed.times
        return self._started
