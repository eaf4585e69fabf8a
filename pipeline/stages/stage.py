"""Interface between a stage and its driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dpstream.pipeline.actions import Steps
from dpstream.topics.names import Role


class Stage(Protocol):
    """Stage without I/O of its own; see `dpstream.pipeline.actions` for its steps.

    Times are in seconds from any origin. Steps are executed one at a time. At any time, a stage can
    be assigned a partition again; it then rebuilds its state from the topics.
    """

    @property
    def role(self) -> Role: ...

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Take over a partition, and return the offset from which to read the partition."""

    def revoke(self, partition: int) -> None: ...

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """Process the next record of a partition.

        `written` is the time of writing in milliseconds since 1970 by the broker's clock, or None
        if the topic's records have their writers' timestamps.
        """

    def tick(self, now: float) -> Steps[None]: ...

    def idle_seconds(self) -> float | None:
        """Return the seconds until the stage has work again, if no topic that it reads grows.

        Valid if every record in the stage's topic is finished. The result is infinite if no clock
        is used, and None if work is left or the worker owns no partition to judge by.
        """

    def needs(self, partition: int, below: int) -> Steps[bool]:
        """Return whether deleted records of a partition below an offset might still be needed."""

    def unfinished(self, partition: int) -> str: ...

    def heartbeat(self) -> Mapping[str, object]: ...
