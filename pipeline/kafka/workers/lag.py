"""How far a consumer group is behind, in seconds, from the ends of a partition alone.

The method of kafka-lag-exporter: remember when the partition had which end, and interpolate when
the first record that is not committed yet was written. Nothing is asked of the broker for it.
"""

from __future__ import annotations

from itertools import pairwise

# Beyond this many points every second one is forgotten, so that what is kept covers any time.
_POINTS = 256


class EndHistory:
    """The ends of one partition by time, in seconds of one clock.

    >>> history = EndHistory()
    >>> for second, end in enumerate([100, 100, 110, 120]):
    ...     history.note(second, end)
    >>> history.seconds_behind(now=10, committed=105)
    8.5
    >>> history.seconds_behind(now=10, committed=120)
    0.0

    What was written before the history began is at least as old as the history:

    >>> history.seconds_behind(now=10, committed=7)
    10.0
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def note(self, now: float, end: int) -> None:
        """The partition ends at `end` at the moment `now`."""
        points = self._points
        if len(points) > 1 and points[-2][1] == points[-1][1] == end:
            # Of a time without records only its beginning and its end matter.
            points[-1] = (now, end)
        else:
            points.append((now, end))
        if len(points) > _POINTS:
            del points[1:-1:2]

    def seconds_behind(self, now: float, committed: int) -> float:
        """The age of the record at offset `committed`; 0 if there is none yet."""
        points = self._points
        if not points or committed >= points[-1][1]:
            return 0.0
        for (earlier, low), (later, high) in pairwise(points):
            if low <= committed < high:
                written = earlier + (later - earlier) * (committed - low) / (high - low)
                return max(0.0, now - written)
        return float(max(0.0, now - points[0][0]))
