"""Whether a worker is alive and ready, in one line of text."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.pipeline.kafka.workers.watchdog import Watchdog

# Health is denied after half of the watchdog's patience: whoever watches sees it before the end.
_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Health:
    """An answer: yes or no, and why."""

    good: bool
    line: str


def liveness(watchdog: Watchdog) -> Health:
    """Whether the event loop ticks and what could be read is read.

    Neither a stream without records nor a broker that is away is held against the worker.
    """
    fault = watchdog.fault(_SHARE)
    if fault is not None:
        return Health(False, fault)
    return Health(True, "alive" if watchdog.pulse.broker_answers else "alive, without a broker")


def readiness(watchdog: Watchdog) -> Health:
    """Whether partitions are assigned, and restored from all logs that the stage needs.

    A worker to which the group gave no partition stands by, and is ready for one.
    """
    alive, pulse = liveness(watchdog), watchdog.pulse
    if not alive.good:
        return alive
    if not pulse.broker_answers:
        return Health(False, "the broker is not reachable")
    if not pulse.restored:
        return Health(False, "partitions are being assigned or restored")
    owned = ", ".join(map(str, sorted(pulse.positions)))
    return Health(True, f"ready, partitions: {owned}" if owned else "standing by, no partitions")
