"""Looks at a worker now and then, and keeps what is seen for whoever asks."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.lag import EndHistory
from dpstream.pipeline.kafka.workers.metrics import Lag, WorkerSnapshot
from dpstream.pipeline.kafka.workers.published_numbers import PublishedNumbers
from dpstream.pipeline.stages.finished_windows import FinishedWindow, WindowListener, ignore_window
from dpstream.pipeline.stages.stage import Stage
from dpstream.topics.manifests import Fate


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
