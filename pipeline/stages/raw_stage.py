"""Common base of the stages that read raw reports: the shuffler, and parallel shufflers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from dpstream.pipeline.actions import Commit, DeleteBelow, Flush, LogCursor, Steps, catch_up
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.admission import Rejection, dead_letter
from dpstream.pipeline.stages.decision_log import Decision, manifest_at
from dpstream.pipeline.stages.deleted_records import needs_below
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.window_writer import WindowRelease, WindowsAgain, WindowWriter
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.names import Role

MAX_BUFFERED_BYTES: Final = 1 << 28
"""Maximum bytes of messages that open windows buffer; other messages are read again."""


WindowT = TypeVar("WindowT", bound=OpenWindow)


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """Log offsets of a window that is released but not yet written.

    Stores offsets instead of the manifest, which can list ten thousand producers. With parallel
    shufflers, `manifest` (of the window's content) and `decision` differ.
    """

    first_offset: int
    manifest: int
    decision: int


@dataclass(slots=True)
class RawPartition(Generic[WindowT]):
    """State of an owned partition, read up to `position`; no record below `floor` is needed.

    This owner must write the windows in `pending`, whichever worker decided them.
    """

    number: int
    position: int
    floor: int
    windows: dict[int, WindowT] = field(default_factory=dict)
    pending: dict[int, PendingWrite] = field(default_factory=dict)
    written: EpochSet = field(default_factory=EpochSet)

    def unfinished_offsets(self) -> Iterator[int]:
        for window in self.windows.values():
            if window.first_offset is not None:
                yield window.first_offset
        for pending in self.pending.values():
            yield pending.first_offset


Partition = TypeVar("Partition", bound=RawPartition[Any])


class RawStage(ABC, Generic[Partition, WindowT]):
    """The shuffler, or one of several parallel shufflers, numbered from 1 by `instance`."""

    _manifest_log: LogCursor

    def __init__(
        self,
        job: DeployedJob,
        instance: int,
        release: WindowRelease,
        environment: Environment,
    ) -> None:
        self.role = job.route.reports[instance - 1]
        self._job = job
        self._form = job.format_of(self.role)
        self._hides_messages = job.counts_devices
        self._wall_clock = environment.wall_clock
        self._open_spill_file = environment.open_spill_file
        self._listener = environment.listener
        self._partitions: dict[int, Partition] = {}
        self._registry = ProducerRegistry(job)
        self._producer_log = job.cursor(Role.PRODUCERS, self._registry.apply)
        self._writer = WindowWriter(job, self._windows_again(), release, environment.identifiers)
        self._unflushed = False
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def _start_logs(self) -> None: ...

    def _tells(self, partition: int, floor: int) -> bool:
        return False

    @abstractmethod
    def _windows_again(self) -> WindowsAgain: ...

    @abstractmethod
    def _own(self, partition: int, floor: int) -> Partition: ...

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Take over a partition, and return the offset from which to read the partition.

        A window that has a manifest but might be incomplete in the output topic is written again as
        a whole, under the same manifest.
        """
        self.revoke(partition)
        start = self._job.start_offset(self.role, partition)
        floor = start if committed is None else max(start, committed)
        state = self._partitions[partition] = self._own(partition, floor)
        if not self._tells(partition, floor):
            self._start_logs()
        yield from self._catch_up()
        yield from self._write_pending(state)
        return floor

    def needs(self, partition: int, below: int) -> Steps[bool]:
        return (yield from needs_below(self._job, self.role, partition, below))

    def revoke(self, partition: int) -> None:
        state = self._partitions.pop(partition, None)
        for window in state.windows.values() if state is not None else ():
            window.close()

    def idle_seconds(self) -> float | None:
        """See `Stage.idle_seconds`; None while open or pending windows hold back the offset."""
        states = self._partitions.values()
        idle = states and all(state.floor == state.position for state in states)
        return math.inf if idle else None

    def _catch_up(self) -> Steps[None]:
        yield from catch_up((self._producer_log, self._manifest_log))

    def _multiset(self) -> MessageMultiset:
        return MessageMultiset(self._form, self._open_spill_file)

    def _bound_memory(self) -> None:
        """Drop the messages of the latest open windows; the topic still has the messages."""
        buffered = sorted(
            (w for state in self._partitions.values() for w in state.windows.values()),
            key=lambda window: window.epoch,
        )
        total = sum(window.buffered_bytes for window in buffered)
        while total > MAX_BUFFERED_BYTES and len(buffered) > 1:
            furthest = buffered.pop()
            total -= furthest.buffered_bytes
            if furthest.buffered_bytes:
                furthest.drop_messages()

    def _write_pending(self, state: Partition) -> Steps[None]:
        for epoch in sorted(state.pending):
            pending = state.pending[epoch]
            yield from self._producer_log.catch_up()
            manifest = yield from manifest_at(self._job, pending.manifest)
            words = yield from self._writer.read(manifest)
            yield from self._write(state, Decision(manifest, pending.decision), words)
            words.close()

    def _write(self, state: Partition, decision: Decision, words: MessageMultiset) -> Steps[None]:
        yield from self._writer.write(decision, words)
        self._unflushed = False
        state.written.add(decision.manifest.epoch)
        del state.pending[decision.manifest.epoch]

    def _reject(
        self, state: Partition, offset: int, value: bytes, rejection: Rejection
    ) -> Steps[None]:
        self._unflushed = True
        self.counts[f"dead letters {rejection.reason.value}"] += 1
        yield dead_letter(self._job, self.role, state.number, offset, value, rejection)

    def _commit_floor(self, state: Partition) -> Steps[None]:
        """Commit the first offset of the oldest unfinished window, and delete earlier records."""
        floor = min(state.unfinished_offsets(), default=state.position)
        if floor <= state.floor:
            return
        if self._unflushed:
            yield Flush()
            self._unflushed = False
        yield Commit(self.role, state.number, floor)
        state.floor = floor
        yield DeleteBelow(self.role, state.number, floor)
