"""Actions that a stage requests from its driver.

The stages are written sans I/O. A method of a stage is a generator that yields actions and receives
the reply to each. A driver carries the actions out in the order in which they are yielded. Drivers
are Faust workers, the in-memory log of ``simulate``, and a test that stops after every action. A
method looks like this:

>>> def copy(record: LogRecord) -> Steps[int]:
...     yield Append(Role.SHUFFLED, 0, record.value)
...     yield Flush()
...     return record.offset + 1

* For the stage, a driver that stops iterating has crashed: unflushed appends might be lost.
* A driver that cannot carry out an action closes the generator and discards the stage. No exception
  is ever thrown into the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from dpstream.topics.names import Role

# Number of records to read in the first attempt when searching from the end.
_READ_FIRST = 128

Headers: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Record read from a topic; `timestamp` is in milliseconds since 1970.

    The broker sets the timestamp when it writes the record; senders cannot choose it.
    """

    offset: int
    value: bytes
    timestamp: int = 0
    key: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Consecutive records of a partition, and the offset at which to continue reading."""

    records: tuple[LogRecord, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Append:
    """Write a record. Only a later `Flush` confirms that the record was acknowledged."""

    role: Role
    partition: int
    value: bytes = field(repr=False)
    key: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """Wait until all in-sync replicas have acknowledged every append so far, or stop the driver.

    The reply is the `Ends` of all partitions with appends: for each, the offset after its last new
    record. Partitions whose offset is unknown are omitted; if all are unknown, the reply is None.
    """


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read records with offsets in [start, stop), a few MiB at a time. Reply: `LogSlice`.

    The reply has at least one record unless the range has none.
    """

    role: Role
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EndOffsets:
    """Query the brokers for the end offsets of several partitions. Reply: their `Ends`.

    The brokers determine the offsets in any order, but never before the request.
    """

    places: tuple[tuple[Role, int], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the floor: the offset below which all processing is final."""

    role: Role
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteBelow:
    """Delete a partition's records below `offset`; failures are ignored."""

    role: Role
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Yield:
    """Let other tasks run during long work; there is no reply."""


Action: TypeAlias = Append | Flush | ReadRange | EndOffsets | Commit | DeleteBelow | Yield
Ends: TypeAlias = Mapping[tuple[Role, int], int]
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Action, Any, Result]


def carry_out(steps: Steps[Result], reply_to: Callable[[Action], object]) -> Result:
    reply: object = None
    while True:
        try:
            action = steps.send(reply)
        except StopIteration as finished:
            result: Result = finished.value
            return result
        reply = reply_to(action)


def ends_of(action: EndOffsets, topic_ends: Callable[[Role], Sequence[int]]) -> Ends:
    """Return the reply to `EndOffsets`, given the end offsets of all partitions by role."""
    ends = {role: topic_ends(role) for role in dict(action.places)}
    return {(role, partition): ends[role][partition] for role, partition in action.places}


class Run(Protocol):
    def __call__(self, steps: Steps[Result], /) -> Result: ...


def end_offset(role: Role, partition: int) -> Steps[int]:
    ends: Ends = yield EndOffsets(((role, partition),))
    return ends[role, partition]


def scan(
    role: Role, partition: int, start: int, stop: int, visit: Callable[[LogRecord], object]
) -> Steps[None]:
    """Call `visit` with every record in [start, stop), reading a slice at a time."""
    cursor = LogCursor(role, start, visit, partition)
    cursor.end = stop
    yield from cursor.read()


def record_at(role: Role, partition: int, offset: int) -> Steps[LogRecord]:
    """Read the record at an offset, which must exist."""
    reply = yield ReadRange(role, partition, offset, offset + 1)
    assert isinstance(reply, LogSlice)
    (record,) = reply.records
    return record


def places_near(begin: int, end: int) -> Iterator[int]:
    """Yield start offsets, each further back, for searching near the end of a partition."""
    back = _READ_FIRST
    while end - back > begin:
        yield end - back
        back *= 8
    yield begin


class LogCursor:
    """Reader of a partition that calls `visit` with each record, and resumes where it stopped.

    Attributes:
        position: Next offset to read; initially `start`.
        end: Offset before which reading stops.
        visit_all: If given, called once per slice with its records, instead of `visit` per record.
    """

    def __init__(
        self,
        role: Role,
        start: int,
        visit: Callable[[LogRecord], object],
        partition: int = 0,
        visit_all: Callable[[Sequence[LogRecord]], object] | None = None,
    ) -> None:
        self.position = self.end = start
        self._role = role
        self._partition = partition
        self._visit = visit
        self._visit_all = visit_all

    @property
    def place(self) -> tuple[Role, int]:
        return self._role, self._partition

    def find_end(self) -> Steps[None]:
        yield from find_ends([self])

    def read_some(self) -> Steps[bool]:
        """Read the next few MiB before the end; return False if there is nothing left to read."""
        if self.position >= self.end:
            return False
        reply = yield ReadRange(self._role, self._partition, self.position, self.end)
        assert isinstance(reply, LogSlice)
        if self._visit_all is not None and len(reply.records) > 1:
            self._visit_all(reply.records)
        else:
            for record in reply.records:
                self._visit(record)
        self.position = reply.end if reply.records else self.end
        return True

    def read(self) -> Steps[None]:
        while (yield from self.read_some()):
            pass

    def catch_up(self) -> Steps[None]:
        yield from self.find_end()
        yield from self.read()

    def flush(self) -> Steps[None]:
        """Wait until all appends are acknowledged, and read up to the end of the appended records.

        The acknowledgement states the record's offset. Of competing records, the first counts, so a
        writer that has read all records before its own knows which one counts.
        """
        written: Ends | None = yield Flush()
        if written is None or self.place not in written:
            yield from self.find_end()
        else:
            self.end = max(self.end, written[self.place])
        yield from self.read()


def find_ends(cursors: Iterable[LogCursor]) -> Steps[None]:
    """Update the ends of several cursors with one request."""
    found = list(cursors)
    ends: Ends = yield EndOffsets(tuple(cursor.place for cursor in found))
    for cursor in found:
        cursor.end = ends[cursor.place]


def catch_up(cursors: Iterable[LogCursor]) -> Steps[None]:
    """Read several partitions, in this order, up to their current ends."""
    found = list(cursors)
    yield from find_ends(found)
    for cursor in found:
        yield from cursor.read()
