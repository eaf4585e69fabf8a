"""Timeouts and intervals of a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in seconds; tests shorten them.

    Attributes:
        session: Time without heartbeats after which Kafka reassigns a worker's partitions.
        heartbeat: Interval between heartbeats to the group's coordinator.
        rebalance: Kafka's timeout for workers to release their partitions.
        status: Interval between records in ``<job>.status``.
        probe: Time without an answer after which the broker counts as unreachable.
        topics: Interval between checks that the topics are unchanged.
        blocked: The watchdog's timeout for an event loop that does not tick.
        unrestored: The watchdog's timeout for restoring partitions.
        stalled: The watchdog's timeout for waiting records that are not read.
        fetch: Maximum delay of the broker's answer to a fetch while there are no records.
        whole: Maximum delay of the broker's answer to a fetch that covers every partition.
        batch: Number of available bytes that ends the delay `whole` early.
        quiet: Maximum delay of the broker's answer if no record arrived since the last fetch.
        idle: Interval between polls while there is capacity for more records.
        look: Interval at which clients check what to request, and threads check whether to end.
    """

    session: float = 10.0
    heartbeat: float = 1.0
    rebalance: float = 20.0
    request: float = 30.0
    tick: float = 0.25
    status: float = 1.0
    probe: float = 3.0
    topics: float = 5.0
    blocked: float = 30.0
    unrestored: float = 60.0
    stalled: float = 120.0
    ends: float = 1.0
    fetch: float = 0.05
    whole: float = 0.05
    batch: int = 1
    quiet: float = 0.05
    idle: float = 0.1
    look: float = 0.2

    def __post_init__(self) -> None:
        if not 2 * self.heartbeat <= self.session <= self.request:
            raise ValueError(
                f"the session timeout is {self.session} s; expected at least twice the heartbeat "
                f"interval ({2 * self.heartbeat} s) and at most the request timeout "
                f"({self.request} s)"
            )

    @classmethod
    def of_many(cls) -> Timings:
        return cls(
            heartbeat=3.0,
            tick=3.0,
            status=3.0,
            topics=15.0,
            ends=3.0,
            whole=0.5,
            batch=1 << 20,
            quiet=2.0,
            idle=2.0,
            look=3.0,
        )

    @property
    def pause(self) -> float:
        """Seconds after which a paused worker confirms that its partitions are still assigned."""
        return self.session / 2
