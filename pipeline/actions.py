"""What a stage asks of the world outside.

The stages are written sans I/O. A method of a stage is a generator: it yields actions, and is sent
the reply of each. Whoever drives it (a Faust worker, the in-memory log of ``simulate``, a test that
stops after every single action) carries the actions out, in the order in which they come:

>>> def copy(record: LogRecord) -> Steps[int]:
...     yield Append(Role.SHUFFLED, 0, record.value)
...     yield Flush()
...     return record.offset + 1

A driver that stops iterating has crashed, as far as the stage is concerned: everything appended and
not yet flushed may be lost or kept. A driver that cannot carry an action out closes the generator
and forgets the stage; no exception is ever thrown into it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

from dpstream.topics.names import Role

# Records from the end back.
_READ_FIRST = 128

Headers: TypeAlias = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as read from a topic: its offset, value and timestamp.

    The timestamp, in milliseconds since 1970, is when the broker wrote it: no writer chooses one.
    """

    offset: int
    value: bytes
    timestamp: int = 0
    key: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Some consecutive records of a partition, and the offset at which to read on."""

    records: tuple[LogRecord, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Append:
    """Write a record. Buffered: only a later `Flush` says that it has been acknowledged."""

    role: Role
    partition: int
    value: bytes = field(repr=False)
    key: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """Every append so far has been acknowledged by all in-sync replicas, or the driver stops.

    Reply: `Ends` of the partitions appended to so far, in each the offset after the last record of
    these. One that the driver has not learned is left out; one that learns none replies None.
    """


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read some of the records from `start` to before `stop`, a few MiB. Reply: `LogSlice`.

    The reply holds at least one record unless none is left.
    """

    role: Role
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EndOffsets:
    """Ask the brokers for the offsets that the next records of some partitions will get.

    Reply: `Ends` of all these places, each a role and a partition. In which order brokers look at
    them is not said, but all look after the question.
    """

    places: tuple[tuple[Role, int], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the floor: everything below `offset` is finished for good."""

    role: Role
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteBelow:
    """Delete a partition's records below `offset`; housekeeping, allowed to fail."""

    role: Role
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Yield:
    """Nothing is asked: in the midst of long work, let others have their turn."""


Action: TypeAlias = Append | Flush | ReadRange | EndOffsets | Commit | DeleteBelow | Yield
Ends: TypeAlias = Mapping[tuple[Role, int], int]
Result = TypeVar("Result")
Steps: TypeAlias = Generator[Action, Any, Result]


def carry_out(steps: Steps[Result], reply_to: Callable[[Action], object]) -> Result:
    """Carry out a whole generator by what replies to its actions; returns what it returns."""
    reply: object = None
    while True:
        try:
            action = steps.send(reply)
        except StopIteration as finished:
            result: Result = finished.value
            return result
        reply = reply_to(action)


def ends_of(action: EndOffsets, topic_ends: Callable[[Role], Sequence[int]]) -> Ends:
    """The reply of whoever knows where all partitions of a topic end, by its role."""
    ends = {role: topic_ends(role) for role in dict(action.places)}
    return {(role, partition): ends[role][partition] for role, partition in action.places}


class Run(Protocol):
    """Carries out steps on the topics of a job."""

    def __call__(self, steps: Steps[Result], /) -> Result:
        """Carry out a whole generator; returns what it returns."""
        ...


def end_offset(role: Role, partition: int) -> Steps[int]:
    """Ask for the present end of a partition."""
    ends: Ends = yield EndOffsets(((role, partition),))
    return ends[role, partition]


def scan(
    role: Role, partition: int, start: int, stop: int, visit: Callable[[LogRecord], object]
) -> Steps[None]:
    """Show `visit` every record from `start` to before `stop`, a slice at a time."""
    cursor = LogCursor(role, start, visit, partition)
    cursor.end = stop
    yield from cursor.read()


def record_at(role: Role, partition: int, offset: int) -> Steps[LogRecord]:
    """Read the record at an offset, which is there."""
    reply = yield ReadRange(role, partition, offset, offset + 1)
    assert isinstance(reply, LogSlice)
    (record,) = reply.records
    return record


def places_near(begin: int, end: int) -> Iterator[int]:
    """Where to begin reading, of whoever looks for what lies near the end: further back each time.

    >>> list(places_near(10, 10_000)), list(places_near(10, 50))
    ([9872, 8976, 1808, 10], [10])
    """
    back = _READ_FIRST
    while end - back > begin:
        yield end - back
        back *= 8
    yield begin


class LogCursor:
    """Shows `visit` the records of a partition, going on where it last stopped.

    Args:
        role: of the topic.
        start: the offset at which it begins.
        visit: is shown every record.
        partition: of the topic.
        visit_all: is shown records in its place, as many at once as there are.

    Attributes:
        position: the offset at which it reads on.
        end: the offset before which it stops.
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
        """The role and the partition."""
        return self._role, self._partition

    def find_end(self) -> Steps[None]:
        """See how far the partition goes by now."""
        yield from find_ends([self])

    def read_some(self) -> Steps[bool]:
        """Read the next few MiB of what lies before the end; False when nothing is left."""
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
        """Read up to the end."""
        while (yield from self.read_some()):
            pass

    def catch_up(self) -> Steps[None]:
        """Read up to the present end."""
        yield from self.find_end()
        yield from self.read()

    def flush(self) -> Steps[None]:
        """Have every append so far acknowledged; read up to what was appended here, with it.

        Who has appended a record reads all that others have written before it: what counts of
        several is the same, whatever comes later. Where that record lies its acknowledgement says.
        """
        written: Ends | None = yield Flush()
        if written is None or self.place not in written:
            yield from self.find_end()
        else:
            self.end = max(self.end, written[self.place])
        yield from self.read()


def find_ends(cursors: Iterable[LogCursor]) -> Steps[None]:
    """See how far several partitions go by now, asked at once."""
    found = list(cursors)
    ends: Ends = yield EndOffsets(tuple(cursor.place for cursor in found))
    for cursor in found:
        cursor.end = ends[cursor.place]


def catch_up(cursors: Iterable[LogCursor]) -> Steps[None]:
    """Read several partitions, in this order, up to where they end by now."""
    found = list(cursors)
    yield from find_ends(found)
    for cursor in found:
        yield from cursor.read()
