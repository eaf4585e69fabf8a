"""How far the clock of the machine that looks is off the broker's.

Whoever only reads is never told what time it is by a broker. But every record is stamped by the
broker's clock, and workers write one every second: what appears between two looks was written
between them, and nothing was ever written in the future.
"""

from __future__ import annotations

from collections.abc import Callable

from dpstream.pipeline.jobs.epoch_times import CLOCK_TOLERANCE
from dpstream.pipeline.kafka.broker_clock import steady_seconds


class ComparedClock:
    """Compares this machine's clock with the stamps of what others write.

    Args:
        steady: seconds of any origin, never set.

    Attributes:
        ahead: by how many seconds this machine's clock is ahead, at least; negative if behind, 0
            within the tolerance, None while it is not known.
    """

    def __init__(self, steady: Callable[[], float] = steady_seconds) -> None:
        self._steady = steady
        self._compared: float | None = None
        self.ahead: float | None = None

    def compare(self, now: int, newest: int | None) -> None:
        """Compare once more.

        Args:
            now: this machine's clock, in milliseconds since 1970.
            newest: the latest stamp among the records that are new since the last time; None if
                there are none.
        """
        moment = self._steady()
        since, self._compared = self._compared, moment
        if newest is None:
            return
        most = (now - newest) / 1000
        if abs(most) <= CLOCK_TOLERANCE:
            self.ahead = 0.0
        elif most < 0:
            self.ahead = most
        elif since is not None:
            least = most - (moment - since)
            self.ahead = least if least > CLOCK_TOLERANCE else 0.0

    def broker_time(self, now: int) -> int:
        """What the broker's clock says, as far as it is known, when this machine's says `now`."""
        return now - int(1000 * (self.ahead or 0.0))
