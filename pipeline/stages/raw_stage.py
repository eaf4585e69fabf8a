"""What stages do that read raw reports: the shuffle stage, and the instances beside it.

Records of an epoch are collected in a window. Under a manifest in the log the window's words are
owed, and written as a multiset, from the window or from what the topic holds; only then does the
committed offset pass its first record. When and by whom that manifest is made, a subclass says.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from dpstream.pipeline.actions import Commit, DeleteBelow, Flush, LogCursor, Steps, catch_up
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.stages.admission import Refusal, dead_letter
from dpstream.pipeline.stages.decision_log import Decision, manifest_at
from dpstream.pipeline.stages.deleted_records import needs_below
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.window_writer import WindowRelease, WindowsAgain, WindowWriter
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.names import Role

MEMORY_HELD: Final = 1 << 28
"""Bytes of words that open windows hold; what is beyond is read again when it is needed."""


WindowT = TypeVar("WindowT", bound=OpenWindow)


@dataclass(frozen=True, slots=True)
class Owed:
    """Where it is said what is to be written of an epoch; of ten thousand producers, too.

    Attributes:
        first_offset: of the epoch's first record in the raw topic.
        manifest: offset of the manifest that says it, in the manifest log.
        decision: offset of the manifest that decides the epoch: the same, but for instances.
    """

    first_offset: int
    manifest: int
    decision: int


@dataclass(slots=True)
class RawPartition(Generic[WindowT]):
    """What a stage knows of a partition it owns.

    Attributes:
        number: of the partition.
        position: offset up to which it was read.
        floor: offset below which nothing is needed any more.
        windows: what was read of epochs that are not through.
        owed: manifests under which this owner has words to write, whoever wrote them.
        written: epochs of which it has.
    """

    number: int
    position: int
    floor: int
    windows: dict[int, WindowT] = field(default_factory=dict)
    owed: dict[int, Owed] = field(default_factory=dict)
    written: EpochSet = field(default_factory=EpochSet)

    def unfinished_offsets(self) -> Iterator[int]:
        """First offsets of what is still to be decided or written."""
        for window in self.windows.values():
            if window.first_offset is not None:
                yield window.first_offset
        for owed in self.owed.values():
            yield owed.first_offset


Partition = TypeVar("Partition", bound=RawPartition[Any])


class RawStage(ABC, Generic[Partition, WindowT]):
    """The shuffle stage, or an instance beside it.

    Args:
        job: the deployed job.
        instance: of the shuffle stage, where several work side by side, from 1 on.
        release: what this stage releases of windows.
        environment: see there.
    """

    _manifest_log: LogCursor

    def __init__(
        self,
        job: DeployedJob,
        instance: int,
        release: WindowRelease,
        environment: Environment,
    ) -> None:
        self.role = job.report_roles[instance - 1]
        self._job = job
        self._form = job.form_of(self.role)
        self._hides_messages = job.counts_devices
        self._wall_clock = environment.wall_clock
        self._scratch = environment.scratch
        self._listener = environment.listener
        self._partitions: dict[int, Partition] = {}
        self._roster = Roster(job)
        self._producer_log = job.cursor(Role.PRODUCERS, self._roster.apply)
        self._writer = WindowWriter(job, self._windows_again(), release, environment.identifiers)
        self._unflushed = False
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def _begin_logs(self) -> None:
        """Read what was decided from the beginning."""

    def _tells(self, partition: int, floor: int) -> bool:
        """Whether what was read of the logs for other partitions is all there is to this one."""
        return False

    @abstractmethod
    def _windows_again(self) -> WindowsAgain:
        """Collects windows that are decided from what the topic holds."""

    @abstractmethod
    def _own(self, partition: int, floor: int) -> Partition:
        """A partition of which nothing is known yet."""

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Take a partition over; returns the offset from which its records are to be shown.

        What was begun under a manifest and perhaps not written in full is written again, whole,
        under the same manifest.
        """
        self.revoke(partition)
        start = self._job.start_offset(self.role, partition)
        floor = start if committed is None else max(start, committed)
        state = self._partitions[partition] = self._own(partition, floor)
        if not self._tells(partition, floor):
            self._begin_logs()
        yield from self._catch_up()
        yield from self._write_owed(state)
        return floor

    def needs(self, partition: int, below: int) -> Steps[bool]:
        """See `Stage.needs`."""
        return (yield from needs_below(self._job, self.role, partition, below))

    def revoke(self, partition: int) -> None:
        """Forget a partition."""
        state = self._partitions.pop(partition, None)
        for window in state.windows.values() if state is not None else ():
            window.close()

    def rests(self) -> float | None:
        """See `Stage.rests`: what is collected or owed holds the floor.

        What clocks or decisions have left to do without any record, a subclass knows.
        """
        states = self._partitions.values()
        idle = states and all(state.floor == state.position for state in states)
        return math.inf if idle else None

    def _catch_up(self) -> Steps[None]:
        yield from catch_up((self._producer_log, self._manifest_log))

    def _multiset(self) -> WordMultiset:
        return WordMultiset(self._form, self._scratch)

    def _bound_memory(self) -> None:
        """Drop the words of the windows that are furthest ahead; they are read again in time."""
        held = sorted(
            (w for state in self._partitions.values() for w in state.windows.values()),
            key=lambda window: window.epoch,
        )
        total = sum(window.held_bytes for window in held)
        while total > MEMORY_HELD and len(held) > 1:
            furthest = held.pop()
            total -= furthest.held_bytes
            if furthest.held_bytes:
                furthest.drop_words()

    def _write_owed(self, state: Partition) -> Steps[None]:
        """Write what is owed from what the raw topic holds of it."""
        for epoch in sorted(state.owed):
            owed = state.owed[epoch]
            yield from self._producer_log.catch_up()
            manifest = yield from manifest_at(self._job, owed.manifest)
            words = yield from self._writer.read(manifest)
            yield from self._write(state, Decision(manifest, owed.decision), words)
            words.close()

    def _write(self, state: Partition, decision: Decision, words: WordMultiset) -> Steps[None]:
        yield from self._writer.write(decision, words)
        self._unflushed = False
        state.written.add(decision.manifest.epoch)
        del state.owed[decision.manifest.epoch]

    def _refuse(self, state: Partition, offset: int, value: bytes, refusal: Refusal) -> Steps[None]:
        self._unflushed = True
        self.counts[f"dead letters {refusal.reason.value}"] += 1
        yield dead_letter(self._job, self.role, state.number, offset, value, refusal)

    def _commit_floor(self, state: Partition) -> Steps[None]:
        """When the first offset of the oldest unfinished window has moved: commit, and delete."""
        floor = min(state.unfinished_offsets(), default=state.position)
        if floor <= state.floor:
            return
        if self._unflushed:
            yield Flush()
            self._unflushed = False
        yield Commit(self.role, state.number, floor)
        state.floor = floor
        yield DeleteBelow(self.role, state.number, floor)
