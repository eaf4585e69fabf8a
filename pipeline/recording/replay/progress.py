"""How far a replay is, told every few seconds, also while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOVING_SECONDS = 2.0
_WAITING_SECONDS = 5.0


class Progress:
    """Tells what was reached, not too often.

    Args:
        last: the last epoch.
        tell: is told.
        clock: seconds of any origin.
    """

    def __init__(
        self,
        last: int,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last = last
        self._tell = tell
        self._clock = clock
        self._told_at = clock()
        self._is = f"no epoch of {last:,} is done yet"
        self._told = ""

    def reached(self, epoch: int, what: str) -> None:
        """Something is done with an epoch."""
        self._is = f"epoch {epoch:,} of {self._last:,} is {what}"
        self._tell_after(_MOVING_SECONDS, self._is)

    def waiting(self) -> None:
        """Nothing has been done; to be called again and again."""
        waiting = f"{self._is}; waiting for what comes next"
        self._tell_after(_WAITING_SECONDS, waiting if self._told == self._is else self._is)

    def _tell_after(self, seconds: float, text: str) -> None:
        now = self._clock()
        if now - self._told_at >= seconds:
            self._told_at, self._told = now, self._is
            self._tell(text)
