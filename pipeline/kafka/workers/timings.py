"""How long a worker waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations in seconds; tests shorten them.

    Attributes:
        session: Kafka gives the partitions of a worker that is silent for so long to others.
        heartbeat: between two words to the group's coordinator.
        rebalance: what Kafka grants every worker for giving its partitions up.
        request: what the broker is granted for an answer.
        tick: between two ticks of the stage.
        status: between two records in ``<job>.status``.
        probe: without an answer for so long the broker counts as away.
        topics: between two looks at whether the topics are as they were.
        blocked: the watchdog's patience with an event loop that does not tick,
        unrestored: with a worker whose partitions are not restored,
        stalled: with records that wait and are not read.
        ends: between two questions for the ends of the partitions.
        fetch: for so long a broker may hold a question for records back until there are some,
        whole: and for so long if it is about every partition, so that none waits for its answer,
        batch: until there are so many bytes,
        quiet: and for so long, but until there is any, if nothing has come lately.
        idle: between two looks for records while there is room for more.
        look: between two looks of a client for what it may ask for, if nothing tells it before, and
            of a thread for whether it is to end.
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
                f"session is {self.session} s; allowed is from twice the heartbeat, "
                f"{2 * self.heartbeat} s, to the request timeout, {self.request} s"
            )

    @classmethod
    def of_many(cls) -> Timings:
        """Of a worker beside which many others run: it asks less often, and is as safe."""
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
        """After so many seconds a paused worker asks whether its partitions are still its own."""
        return self.session / 2
