"""Released windows of a deployment: their positions in ``<job>.shuffled``, and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from dpstream.pipeline.actions import LogCursor, LogRecord, Steps, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.attempts import Attempt, Attempts, read_chunk
from dpstream.pipeline.stages.ciphertexts_of_windows import distinct
from dpstream.pipeline.stages.environment import OpenSpillFile, temporary_file
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.topics.chunks import Chunk
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role


@dataclass(slots=True)
class _Size:
    bytes: int = 0


@dataclass(slots=True)
class _ReleasedPartition:
    """Progress in reading a partition, with the starts of windows that were not dropped.

    `partial_windows` has each window for which a parallel shuffler's part has not been read, with
    the first complete attempt by every other shuffler.
    """

    cursor: LogCursor
    attempts: Attempts[_Size]
    partial_windows: dict[int, dict[int, tuple[bytes, Attempt[_Size]]]] = field(
        default_factory=dict
    )
    starts: list[tuple[int, int]] = field(default_factory=list)

    @property
    def floor(self) -> int:
        floor = self.attempts.floor(self.cursor.position)
        return min(floor, self.starts[0][0]) if self.starts else floor


@dataclass(frozen=True, slots=True)
class WindowPosition:
    """Position of a window: the first complete attempt by every parallel shuffler.

    The window's `records` are chunks from the offset `start` to below `stop`; chunks of other
    windows can lie in between. `bytes` is the size of its messages.
    """

    partition: int
    start: int
    stop: int
    attempts: frozenset[bytes]
    records: int
    bytes: int


class WindowIndex:
    """Complete windows of a shuffled topic from epoch `first` on, by epoch.

    As in live aggregation, the first complete attempt to write a window counts. Only positions of
    windows are stored, because topics may retain the windows of thousands of epochs. `floors` has
    the first offset to read in each partition, by default the start of the deployment.
    """

    def __init__(
        self, job: DeployedJob, first: int = 1, floors: Mapping[int, int] | None = None
    ) -> None:
        self._job = job
        self._next = first
        self._checks = job.aggregator()
        self.places: dict[int, WindowPosition] = {}
        self._partitions: dict[int, _ReleasedPartition] = {}
        for number in range(job.topics.partitions):
            cursor = job.cursor(Role.SHUFFLED, partial(self._take_in, number), number)
            cursor.position = max(cursor.position, (floors or {}).get(number, 0))
            self._partitions[number] = _ReleasedPartition(cursor, Attempts(_Size, _count))

    @property
    def floors(self) -> dict[int, int]:
        return {number: partition.floor for number, partition in self._partitions.items()}

    def find_end(self) -> Steps[None]:
        for partition in self._partitions.values():
            yield from partition.cursor.find_end()

    def scan(self) -> Steps[None]:
        for partition in self._partitions.values():
            yield from partition.cursor.read()

    def find(self, epoch: int) -> Steps[bool]:
        """Continue reading until an epoch's window is found; return False if it is absent."""
        partition = self._partitions[self._job.topics.partition_of(epoch)]
        while epoch not in self.places:
            if not (yield from partition.cursor.read_some()):
                return False
        return True

    def read(
        self, epoch: int, open_spill_file: OpenSpillFile = temporary_file
    ) -> Steps[Messages | None]:
        """Return the messages of a window in canonical order; None if some have been deleted."""
        words = MessageMultiset(self._job.format_of(Role.SHUFFLED), open_spill_file)
        try:
            if not (yield from self._collect(epoch, words)):
                return None
            ordered = words.sorted()
        finally:
            words.close()
        # A ciphertext that is in the partial windows of several shufflers is a copy, and counts
        # once.
        return ordered if self._job.sealed is None else distinct(ordered)

    def _collect(self, epoch: int, words: MessageMultiset) -> Steps[bool]:
        place = self.places[epoch]
        attempts = Attempts(lambda: words, lambda found, chunk: found.add(chunk.words))
        whole: set[bytes] = set()

        def collect(record: LogRecord) -> None:
            chunk = self._chunk(place.partition, record)
            if chunk is not None and chunk.epoch == epoch and chunk.attempt in place.attempts:
                with suppress(ValueError):
                    if attempts.take_in(record.offset, chunk) is not None:
                        whole.add(chunk.attempt)

        yield from scan(Role.SHUFFLED, place.partition, place.start, place.stop, collect)
        return whole == place.attempts

    def pass_over(self, epoch: int) -> None:
        """Drop an epoch and all earlier epochs, even if the topic still contains their windows."""
        self._next = epoch + 1
        for partition in self._partitions.values():
            while partition.starts and partition.starts[0][1] <= epoch:
                self.places.pop(heappop(partition.starts)[1])
            partition.attempts.drop(lambda each: each <= epoch)
            for begun in [each for each in partition.partial_windows if each <= epoch]:
                del partition.partial_windows[begun]

    def _chunk(self, number: int, record: LogRecord) -> Chunk | None:
        chunk = read_chunk(self._job, number, record.value)
        if isinstance(chunk, Rejection) or chunk.instance > self._job.partial_window_count:
            return None
        if self._job.sealed is not None:
            return chunk
        try:
            self._checks.check_messages(self._job.epochs.local(chunk.epoch), chunk.words.values)
        except ValueError:
            return None
        return chunk

    def _take_in(self, number: int, record: LogRecord) -> None:
        chunk, partition = self._chunk(number, record), self._partitions[number]
        if chunk is None or chunk.epoch < self._next or chunk.epoch in self.places:
            return
        try:
            attempt = partition.attempts.take_in(record.offset, chunk)
        except ValueError:
            return
        if attempt is None:
            return
        partial_windows = partition.partial_windows.setdefault(chunk.epoch, {})
        partial_windows.setdefault(chunk.instance, (chunk.attempt, attempt))
        if len(partial_windows) < self._job.partial_window_count:
            return
        del partition.partial_windows[chunk.epoch]
        whole = [each for _, each in partial_windows.values()]
        start = min(each.first_offset for each in whole)
        self.places[chunk.epoch] = WindowPosition(
            partition=number,
            start=start,
            stop=record.offset + 1,
            attempts=frozenset(each for each, _ in partial_windows.values()),
            records=sum(each.total for each in whole),
            bytes=sum(each.content.bytes for each in whole),
        )
        heappush(partition.starts, (start, chunk.epoch))
        partition.attempts.drop(lambda epoch: epoch == chunk.epoch)


def _count(size: _Size, chunk: Chunk) -> None:
    size.bytes += chunk.words.nbytes
