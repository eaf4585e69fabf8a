"""What every stage offers to whoever drives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dpstream.pipeline.actions import Steps
from dpstream.topics.names import Role


class Stage(Protocol):
    """A stage, sans I/O; see `dpstream.pipeline.actions` for what its steps are.

    Times are seconds of any origin. Steps are carried out one at a time. A stage may be assigned a
    partition again at any moment, and then starts over with what the topics hold.
    """

    @property
    def role(self) -> Role:
        """The topic whose records the stage is shown."""
        ...

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Take a partition over; returns the offset from which its records are to be shown."""
        ...

    def revoke(self, partition: int) -> None:
        """Forget a partition."""
        ...

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """Take in the next record of a partition.

        `written` is when the broker wrote it, in milliseconds since 1970 by the broker's clock;
        None where the topic leaves that to its writers.
        """
        ...

    def tick(self, now: float) -> Steps[None]:
        """Let time pass."""
        ...

    def rests(self) -> float | None:
        """For how many seconds there is nothing left to do, unless a topic that it reads grows.

        That holds of the whole stage, whoever owns which partition, if moreover every record of its
        topic is finished with: what is committed is where each partition ends. Infinite where no
        clock takes part; None where there is something left, or nothing is owned that would tell.
        """
        ...

    def needs(self, partition: int, below: int) -> Steps[bool]:
        """Return whether deleted records of a partition below an offset may still be needed."""
        ...

    def unfinished(self, partition: int) -> str:
        """Which epochs of a partition are not finished, in words for an error."""
        ...

    def heartbeat(self) -> Mapping[str, object]:
        """What ``<job>.status`` is to say about the stage, ready for JSON."""
        ...
