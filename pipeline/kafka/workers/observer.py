"""Looks at a worker now and then, and keeps what is seen for whoever asks.

Lag is how far a consumer group is behind, in seconds, from the ends of a partition alone.

The method of kafka-lag-exporter: remember when the partition had which end, and interpolate when
the first record that is not committed yet was written. Nothing is asked of the broker for it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.metrics import Lag, WorkerSnapshot
from dpstream.pipeline.kafka.workers.worker_facts import PublishedNumbers
from dpstream.pipeline.stages.environment import FinishedWindow, WindowListener, ignore_window
from dpstream.pipeline.stages.stage import Stage
from dpstream.topics.manifests import Fate

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


@dataclass(slots=True)
class WindowTally:
    """Counts the windows that a stage is done with, and passes them on to `listener`.

    `clock` is never set; `wall_clock`, in seconds since 1970, should be the broker's, by which
    windows are dated.
    """

    listener: WindowListener = ignore_window
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    fates: Counter[Fate] = field(default_factory=Counter)
    last_epoch: int | None = None
    last_at: float | None = None
    seconds: float = 0.0

    def __call__(self, window: FinishedWindow) -> None:
        """The stage is done with a window."""
        now = self.wall_clock()
        self.fates[window.fate] += 1
        self.last_epoch = max(window.epoch, self.last_epoch or window.epoch)
        self.last_at = now
        self.seconds += window.seconds(self.clock(), int(now * 1000))
        self.listener(window)


class Observer:
    """What metrics are made of; `snapshot` is replaced whole, so that any thread may read it.

    Args:
        blank: what is known before the first one.
        windows: is told by the stage.
        estimates: says what was published last.
    """

    def __init__(
        self,
        blank: WorkerSnapshot,
        windows: WindowTally,
        estimates: Callable[[], PublishedNumbers | None] = lambda: None,
    ) -> None:
        self.snapshot = blank
        self._windows = windows
        self._estimates = estimates
        self._ends: defaultdict[int, EndHistory] = defaultdict(EndHistory)

    def observe(
        self,
        now: float,
        execution: Execution,
        stage: Stage,
        ends: Mapping[int, int],
        *,
        broker_answers: bool,
        clock_ahead: float | None = None,
    ) -> None:
        """Take a snapshot of the worker; `ends` are those of the partitions, if they are known."""
        if broker_answers:
            for partition, end in ends.items():
                self._ends[partition].note(now, end)
        windows = self._windows
        self.snapshot = replace(
            self.snapshot,
            restored=execution.restored,
            broker_answers=broker_answers,
            clock_ahead=clock_ahead,
            partitions=len(execution.positions),
            records=execution.records,
            lag={
                partition: Lag(
                    max(0, ends[partition] - committed),
                    self._ends[partition].seconds_behind(now, committed),
                )
                for partition, committed in execution.committed.items()
                if partition in ends
            },
            heartbeat=stage.heartbeat(),
            estimates=self._estimates(),
            windows=dict(windows.fates),
            last_epoch=windows.last_epoch,
            last_window_at=windows.last_at,
            window_seconds=windows.seconds,
        )
