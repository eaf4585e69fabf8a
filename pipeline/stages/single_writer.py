"""What stages have in common that one worker at a time writes, from logs that are kept for ever.

The whole state is a function of these logs: a worker that takes over reads what it needs of them,
and goes on after what is written. Owning the one partition of a topic makes it
the active one; the records shown to it only wake it up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

from dpstream.pipeline.actions import Commit, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.environment import WindowListener
from dpstream.topics.names import Role


class SingleWriter(ABC):
    """The one worker that writes a topic.

    Args:
        job: the deployed job.
        listener: is told of every window that this worker has written.
    """

    role: ClassVar[Role]
    """The topic of one partition that wakes it up."""

    def __init__(self, job: DeployedJob, listener: WindowListener) -> None:
        self._job = job
        self._listener = listener
        self.counts: Counter[str] = Counter()
        self._start_over()

    @abstractmethod
    def _begin(self) -> None:
        """Know nothing: logs are read anew."""

    @abstractmethod
    def _write_due(self) -> Steps[None]:
        """Take in what is new, and write what is not written yet."""

    @property
    @abstractmethod
    def _position(self) -> int:
        """The offset at which its topic is read on."""

    @property
    @abstractmethod
    def _waiting(self) -> bool:
        """Whether anything that was read of its topic is not made use of yet."""

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Become the active worker: rebuild the state, and write what is due."""
        self._start_over()
        start = self._job.start_offset(self.role, partition)
        self._committed = start if committed is None else max(start, committed)
        yield from self._go_on()
        self._active = True
        return self._committed

    def needs(self, partition: int, below: int) -> Steps[bool]:
        """See `Stage.needs`: its topic is kept for ever."""
        yield from ()
        return True

    def revoke(self, partition: int) -> None:
        """Another worker writes now."""
        self._start_over()

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """A record has arrived, and wakes the stage up if it has not read it yet."""
        if offset >= self._position:
            yield from self._go_on()

    def tick(self, now: float) -> Steps[None]:
        """Look for what is new in the other logs."""
        if self._active:
            yield from self._go_on()

    def rests(self) -> float | None:
        """See `Stage.rests`: a function of logs, and all that was read of them is made use of."""
        return math.inf if self._active and not self._waiting else None

    def _start_over(self) -> None:
        self._active = False
        self._committed = 0
        self._begin()

    def _go_on(self) -> Steps[None]:
        yield from self._write_due()
        if self._position > self._committed and not self._waiting:
            self._committed = self._position
            yield Commit(self.role, 0, self._committed)
