"""The topics of a job in memory, and a driver that carries actions out on them.

``simulate`` runs the real producer and the real stages on it, and the tests stop it after every
single action: what a crashed owner had appended and not flushed is then lost, or kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TypeVar

from dpstream.pipeline.actions import (
    Action,
    Append,
    Commit,
    DeleteBelow,
    EndOffsets,
    Flush,
    LogRecord,
    LogSlice,
    ReadRange,
    Steps,
    carry_out,
)
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.stages.stage import Stage
from dpstream.topics.names import COMPACTED, Role

# Small, so that reading in several slices is the usual case.
SLICE_BYTES = 1 << 20

Result = TypeVar("Result")


class DeletedError(LookupError):
    """A record that was to be read has been deleted."""


@dataclass(slots=True)
class _Partition:
    """Records from offset `base` on; those below were deleted.

    `latest` has the offset of the last record of every key.
    """

    base: int = 0
    records: list[LogRecord] = field(default_factory=list)
    latest: dict[bytes | None, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.base + len(self.records)


class MemoryLog:
    """The partitions of a job's topics, and the committed offsets, by (role, partition).

    Where several stages read one topic, each has committed offsets of its own: `committed_by` has
    them by reader, of which `committed` is the one without a name.

    Args:
        clock: stamps every record that is written, as a broker does; milliseconds since 1970.
    """

    def __init__(self, clock: Callable[[], int] = own_milliseconds) -> None:
        self.clock = clock
        self._partitions: defaultdict[tuple[Role, int], _Partition] = defaultdict(_Partition)
        self.committed_by: defaultdict[str, dict[tuple[Role, int], int]] = defaultdict(dict)
        self.committed = self.committed_by[""]

    def append(self, action: Append) -> None:
        """Write a record at the end of its partition."""
        partition = self._partitions[action.role, action.partition]
        partition.latest[action.key] = partition.end
        partition.records.append(
            LogRecord(partition.end, action.value, self.clock(), action.key, action.headers)
        )

    def start(self, role: Role, partition: int) -> int:
        """The offset below which all records were deleted."""
        return self._partitions[role, partition].base

    def end(self, role: Role, partition: int) -> int:
        """The offset of the next record."""
        return self._partitions[role, partition].end

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        """Records from `start` to before `stop`, at most about `SLICE_BYTES` of them.

        Of a topic that is compacted, no others than the last of each key.

        Raises:
            DeletedError: the record at `start` was deleted.
        """
        held = self._partitions[role, partition]
        if start < held.base:
            raise DeletedError(f"{role} {partition}: offset {start}, begins with {held.base}")
        taken: list[LogRecord] = []
        size = 0
        for place in range(start - held.base, min(stop, held.end) - held.base):
            record = held.records[place]
            if role in COMPACTED and held.latest[record.key] != record.offset:
                continue
            taken.append(record)
            size += len(record.value)
            if size >= SLICE_BYTES:
                break
        return LogSlice(tuple(taken), taken[-1].offset + 1 if taken else start)

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        """Delete the records below an offset."""
        held = self._partitions[role, partition]
        gone = min(max(offset - held.base, 0), len(held.records))
        del held.records[:gone]
        held.base += gone

    def values(self, role: Role, partition: int = 0) -> list[bytes]:
        """All values of a partition that have not been deleted."""
        return [record.value for record in self._partitions[role, partition].records]


@dataclass(slots=True)
class MemoryDriver:
    """Carries out the actions of one owner.

    Attributes:
        log: of the job.
        pending: what it has not flushed.
        reader: in whose name it commits.
        written: where what it has flushed ends, by partition.
    """

    log: MemoryLog
    pending: list[Append] = field(default_factory=list)
    reader: str = ""
    written: dict[tuple[Role, int], int] = field(default_factory=dict)

    def carry_out(self, action: Action) -> object:
        """Carry one action out; returns its reply."""
        match action:
            case Append():
                self.pending.append(action)
            case Flush():
                self.crash(keep=True)
                return dict(self.written)
            case ReadRange(role, partition, start, stop):
                return self.log.read(role, partition, start, stop)
            case EndOffsets(places):
                return {place: self.log.end(*place) for place in places}
            case Commit(role, partition, offset):
                self.log.committed_by[self.reader][role, partition] = offset
            case DeleteBelow(role, partition, offset):
                self.log.delete_below(role, partition, offset)
        return None

    def crash(self, *, keep: bool) -> None:
        """Lose what was not flushed, or find that it had arrived after all."""
        if keep:
            for append in self.pending:
                self.log.append(append)
                place = append.role, append.partition
                self.written[place] = self.log.end(*place)
        self.pending.clear()

    def run(self, steps: Generator[Action, object, Result]) -> Result:
        """Carry out a whole generator; returns what it returns."""
        return carry_out(steps, self.carry_out)


class MemoryWorker:
    """A stage that owns partitions of a `MemoryLog` and reads them from where it stands.

    Args:
        stage: not used before.
        log: of the job.
        driver: carries the stage's actions out.
        reader: where other stages read the stage's topic, too: in whose name it commits.
    """

    def __init__(
        self,
        stage: Stage,
        log: MemoryLog,
        driver: MemoryDriver | None = None,
        reader: str = "",
    ) -> None:
        self.stage = stage
        self.log = log
        self.driver = driver if driver is not None else MemoryDriver(log)
        self.driver.reader = reader
        self.positions: dict[int, int] = {}

    def assign(self, partition: int, now: float = 0.0) -> Steps[None]:
        """Take a partition over."""
        committed = self.log.committed_by[self.driver.reader].get((self.stage.role, partition))
        self.positions[partition] = yield from self.stage.assign(partition, committed, now)

    def run(self, steps: Generator[Action, object, Result]) -> Result:
        """Carry out a whole generator."""
        return self.driver.run(steps)

    def poll(self, now: float = 0.0) -> Steps[bool]:
        """Show the stage the next record of every partition; False when there is none."""
        shown = False
        for partition, position in list(self.positions.items()):
            for record in self.log.read(self.stage.role, partition, position, position + 1).records:
                self.positions[partition] = record.offset + 1
                yield from self.stage.record(
                    partition, record.offset, record.value, now, record.timestamp
                )
                shown = True
        return shown

    def drain(self, now: float = 0.0) -> Steps[None]:
        """Show everything there is, then let time pass."""
        while (yield from self.poll(now)):
            pass
        yield from self.stage.tick(now)
