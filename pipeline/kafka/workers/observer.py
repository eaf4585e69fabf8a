"""Take snapshots of a worker for its metrics.

Lag in seconds is computed as in kafka-lag-exporter: from a history of a partition's ends.
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
from dpstream.topics.manifests import WindowStatus

# Beyond this number of points, every second point is dropped, so that the history can cover a
# longer time.
_POINTS = 256


class EndHistory:
    """History of one partition's end offset; times are in seconds.

    >>> history = EndHistory()
    >>> for second, end in enumerate([100, 100, 110, 120]):
    ...     history.note(second, end)
    >>> history.lag_seconds(now=10, committed=105)
    8.5
    >>> history.lag_seconds(now=10, committed=120)
    0.0

    A record written before the history started is at least as old as the history:

    >>> history.lag_seconds(now=10, committed=7)
    10.0
    """

    def __init__(self) -> None:
        self._points: list[tuple[float, int]] = []

    def note(self, now: float, end: int) -> None:
        points = self._points
        if len(points) > 1 and points[-2][1] == points[-1][1] == end:
            # Only the start and the end of a period without records matter.
            points[-1] = (now, end)
        else:
            points.append((now, end))
        if len(points) > _POINTS:
            del points[1:-1:2]

    def lag_seconds(self, now: float, committed: int) -> float:
        """Return the age of the record at offset `committed`; 0 if that is not written yet."""
        points = self._points
        if not points or committed >= points[-1][1]:
            return 0.0
        for (earlier, low), (later, high) in pairwise(points):
            if low <= committed < high:
                written = earlier + (later - earlier) * (committed - low) / (high - low)
                return max(0.0, now - written)
        return float(max(0.0, now - points[0][0]))


@dataclass(slots=True)
class WindowCounters:
    """Count a stage's finished windows; `wall_clock` returns seconds by the broker's clock."""

    listener: WindowListener = ignore_window
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    windows_by_status: Counter[WindowStatus] = field(default_factory=Counter)
    last_epoch: int | None = None
    last_at: float | None = None
    seconds: float = 0.0

    def __call__(self, window: FinishedWindow) -> None:
        now = self.wall_clock()
        self.windows_by_status[window.window_status] += 1
        self.last_epoch = max(window.epoch, self.last_epoch or window.epoch)
        self.last_at = now
        self.seconds += window.seconds(self.clock(), int(now * 1000))
        self.listener(window)


class Observer:
    def __init__(
        self,
        blank: WorkerSnapshot,
        windows: WindowCounters,
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
                    self._ends[partition].lag_seconds(now, committed),
                )
                for partition, committed in execution.committed.items()
                if partition in ends
            },
            heartbeat=stage.heartbeat(),
            estimates=self._estimates(),
            windows=dict(windows.windows_by_status),
            last_epoch=windows.last_epoch,
            last_window_at=windows.last_at,
            window_seconds=windows.seconds,
        )
