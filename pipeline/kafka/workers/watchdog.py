"""Exit a worker process that makes no progress although nothing prevents it.

* Faust and its Kafka client can hang without raising an error. A separate thread counts the seconds
  without expected progress, and then ends the process. A supervisor restarts it; nothing is lost.
* Seconds count only while this process runs, so suspension is not a fault. Restoring and reading
  are timed only while the broker answers, so an outage is not a fault either.
* A worker has a heartbeat file, whose modification time changes while the event loop runs. If the
  interpreter hangs, the watchdog's thread hangs, too. The parent process then notices that the file
  no longer changes.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dpstream.pipeline.kafka.workers.timings import Timings

HEARTBEAT_SECONDS = 5.0
_FILE = "heartbeat"


class HeartbeatFile:
    """Touch a file in a worker's folder regularly; if the disk is full, do nothing."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._last = float("-inf")

    def beat(self, now: float) -> None:
        if now >= self._last + HEARTBEAT_SECONDS:
            self._last = now
            with suppress(OSError):
                self._file.touch(mode=0o600)
                os.utime(self._file)


def heartbeat_of(folder: Path) -> int | None:
    try:
        return (folder / _FILE).stat().st_mtime_ns
    except OSError:
        return None


_INTERVAL = 0.5
"""Minimum seconds between two checks; longer if the event loop ticks less often."""


@dataclass(frozen=True, slots=True)
class EventLoopHeartbeat:
    """State of the event loop at its latest tick; ``work`` counts completed actions."""

    restored: bool
    broker_answers: bool
    work: int
    positions: Mapping[int, int] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)


class Watchdog:
    """Detect a blocked event loop, unrestored partitions, and records that are not read.

    `beat` is called by the event loop, `check` by the watchdog's thread.

    >>> watchdog = Watchdog(Timings(unrestored=2))
    >>> watchdog.beat(EventLoopHeartbeat(restored=False, broker_answers=True, work=0))
    >>> [watchdog.check(1.0) for second in range(3)]
    [None, None, 'partitions were not restored for 2 s although the broker answers']
    """

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._heartbeat = self._last = EventLoopHeartbeat(
            restored=False, broker_answers=False, work=0
        )
        self._ticked = True
        self._silent = 0.0
        self._unrestored = 0.0
        self._stalled: dict[int, float] = {}

    def beat(self, heartbeat: EventLoopHeartbeat) -> None:
        self._heartbeat = heartbeat
        self._ticked = True

    def check(self, elapsed: float) -> str | None:
        heartbeat, last = self._heartbeat, self._last
        self._silent = 0.0 if self._ticked else self._silent + elapsed
        self._ticked = False
        if heartbeat.restored or not heartbeat.broker_answers or heartbeat.work != last.work:
            self._unrestored = 0.0
        else:
            self._unrestored += elapsed
        self._stalled = {
            partition: self._stalled.get(partition, 0.0) + elapsed
            for partition, position in heartbeat.positions.items()
            if heartbeat.broker_answers
            and position < heartbeat.ends.get(partition, 0)
            and position == last.positions.get(partition)
        }
        self._last = heartbeat
        return self.fault()

    @property
    def interval(self) -> float:
        return max(_INTERVAL, self._timings.tick)

    @property
    def heartbeat(self) -> EventLoopHeartbeat:
        return self._heartbeat

    def fault(self, share: float = 1.0) -> str | None:
        """Return the fault that has lasted longer than `share` times its timeout, or None."""
        blocked, unrestored, stalled = (
            share * timeout
            for timeout in (self._timings.blocked, self._timings.unrestored, self._timings.stalled)
        )
        if self._silent > blocked:
            return f"the event loop has been blocked for {blocked:g} s"
        if self._unrestored > unrestored:
            return f"partitions were not restored for {unrestored:g} s although the broker answers"
        for partition, seconds in self._stalled.items():
            if seconds > stalled:
                return (
                    f"partition {partition} has records that were not read for {stalled:g} s "
                    "although the broker answers"
                )
        return None


def guard(watchdog: Watchdog, report: Callable[[str], None]) -> None:
    """Start the thread that ends this process, with code 1, when the watchdog finds a fault."""

    def watch() -> None:
        before, interval = time.monotonic(), watchdog.interval
        while True:
            time.sleep(interval)
            now = time.monotonic()
            # A longer time means that this process was suspended.
            fault = watchdog.check(min(now - before, 2 * interval))
            before = now
            if fault is not None:
                report(f"{fault}: exiting, restart this worker")
                os._exit(1)

    threading.Thread(target=watch, name="watchdog", daemon=True).start()


# A worker is unhealthy after half of the watchdog's timeout, so that monitoring shows it before the
# exit.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    good: bool
    line: str


def liveness(watchdog: Watchdog) -> Health:
    """Return whether the event loop ticks and reads; a worker without a broker is alive."""
    fault = watchdog.fault(_SHARE)
    if fault is not None:
        return Health(False, fault)
    return Health(True, "alive" if watchdog.heartbeat.broker_answers else "alive, without a broker")


def readiness(watchdog: Watchdog) -> Health:
    """Return whether the partitions are restored; a worker without partitions is ready."""
    alive, heartbeat = liveness(watchdog), watchdog.heartbeat
    if not alive.good:
        return alive
    if not heartbeat.broker_answers:
        return Health(False, "the broker is unreachable")
    if not heartbeat.restored:
        return Health(False, "partitions are being assigned or restored")
    owned = ", ".join(map(str, sorted(heartbeat.positions)))
    return Health(True, f"ready, partitions: {owned}" if owned else "standby, no partitions")
