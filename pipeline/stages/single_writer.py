"""Common base of stages in which one worker at a time writes, from logs that are kept forever.

The whole state is a function of these logs. A worker that takes over continues after the records
already written. The owner of the topic's one partition is the active worker.
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
    role: ClassVar[Role]
    """Topic, with one partition, that wakes the stage."""

    def __init__(self, job: DeployedJob, listener: WindowListener) -> None:
        self._job = job
        self._listener = listener
        self.counts: Counter[str] = Counter()
        self._start_over()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _write_due(self) -> Steps[None]:
        """Process new records, and write results that are not in the output topic yet."""

    @property
    @abstractmethod
    def _position(self) -> int: ...

    @property
    @abstractmethod
    def _waiting(self) -> bool: ...

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Become the active worker: rebuild the state, and write due results."""
        self._start_over()
        start = self._job.start_offset(self.role, partition)
        self._committed = start if committed is None else max(start, committed)
        yield from self._go_on()
        self._active = True
        return self._committed

    def needs(self, partition: int, below: int) -> Steps[bool]:
        """See `Stage.needs`; always True, because the topic must be kept forever."""
        yield from ()
        return True

    def revoke(self, partition: int) -> None:
        self._start_over()

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        if offset >= self._position:
            yield from self._go_on()

    def tick(self, now: float) -> Steps[None]:
        if self._active:
            yield from self._go_on()

    def idle_seconds(self) -> float | None:
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
