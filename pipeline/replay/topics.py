"""Replays straight from what the topics of a deployment still hold.

Manifests and partials are kept for ever. Windows are there as long as retention lets them: an index
of the shuffled topic says which are still whole, and where.
"""

from __future__ import annotations

import functools
import typing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipeline.actions import LogCursor, LogRecord, Steps, end_offset, scan
from pipeline.admission import Refusal
from pipeline.attempts import Attempts, read_chunk
from pipeline.decisions import Decisions
from pipeline.deployed_job import DeployedJob
from pipeline.multisets import Scratch, WordMultiset, temporary_file
from pipeline.partial_log import PartialLog
from pipeline.replay.sources import ReplayError, Stored, in_words
from topics.chunks import Chunk
from topics.manifests import Manifest
from topics.names import Role
from topics.words import Words

Result = TypeVar("Result")


class Reader(typing.Protocol):
    """Carries out a generator that only reads."""

    def __call__(self, steps: Steps[Result], /) -> Result:
        """What the generator returns."""
        ...


@dataclass(slots=True)
class _Size:
    """Of what has been read of an attempt."""

    bytes: int = 0


@dataclass(frozen=True, slots=True)
class WindowPlace:
    """Where the first complete attempt of a window lies.

    Attributes:
        partition: of the shuffled topic.
        start: offset of its first chunk.
        stop: the offset after its last one; chunks of others may lie between.
        attempt: its id.
        stored: its records, and the bytes of their words.
    """

    partition: int
    start: int
    stop: int
    attempt: bytes
    stored: Stored


class WindowIndex:
    """The whole windows of a shuffled topic, by epoch.

    As for who aggregates them live, the first attempt that is complete counts.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._checks = job.aggregator()
        self.places: dict[int, WindowPlace] = {}

    def scan(self) -> Steps[None]:
        """Look through everything there is now."""
        for partition in range(self._job.partitions):
            end = yield from end_offset(Role.SHUFFLED, partition)
            start = self._job.start_offset(Role.SHUFFLED, partition)
            attempts = Attempts(_Size, _count)
            visit = functools.partial(self._take_in, partition, attempts)
            yield from LogCursor(Role.SHUFFLED, start, visit, partition).read_to(end)

    def read(self, epoch: int, words: WordMultiset) -> Steps[bool]:
        """Collect the words of a window; False if some of it has been deleted meanwhile."""
        place = self.places[epoch]
        attempts = Attempts(lambda: words, lambda found, chunk: found.add(chunk.words))
        whole: list[object] = []

        def collect(record: LogRecord) -> None:
            chunk = self.chunk(record)
            if chunk is not None and (chunk.epoch, chunk.attempt) == (epoch, place.attempt):
                whole.append(attempts.take_in(record.offset, chunk))

        yield from scan(Role.SHUFFLED, place.partition, place.start, place.stop, collect)
        return any(attempt is not None for attempt in whole)

    def chunk(self, record: LogRecord) -> Chunk | None:
        """The chunk of a record; None for what whoever aggregates refuses."""
        chunk = read_chunk(self._job, record.value)
        if isinstance(chunk, Refusal):
            return None
        try:
            self._checks.check_words(self._job.local_epoch(chunk.epoch), chunk.words.values)
        except ValueError:
            return None
        return chunk

    def _take_in(self, partition: int, attempts: Attempts[_Size], record: LogRecord) -> None:
        chunk = self.chunk(record)
        if chunk is None or chunk.epoch in self.places:
            return
        attempt = attempts.take_in(record.offset, chunk)
        if attempt is None:
            return
        self.places[chunk.epoch] = WindowPlace(
            partition,
            attempt.first_offset,
            record.offset + 1,
            chunk.attempt,
            Stored(chunk.total, attempt.content.bytes),
        )
        attempts.drop(lambda epoch: epoch in self.places)


def _count(size: _Size, chunk: Chunk) -> None:
    size.bytes += chunk.words.nbytes


class TopicSource:
    """The topics of a deployment, as they are when this is made.

    Args:
        job: as deployed.
        read: carries out reading.
        windows: look for windows; who wants none need not read where they are.
        scratch: opens scratch files for windows that are not small.
    """

    def __init__(
        self,
        job: DeployedJob,
        read: Reader,
        *,
        windows: bool = True,
        scratch: Scratch = temporary_file,
    ) -> None:
        self.job = job
        self.place = f"the topics of job {job.name}"
        self._read = read
        self._scratch = scratch
        self._index = WindowIndex(job)
        self._partials = self._partial_log()
        self._manifests_end = read(end_offset(Role.MANIFESTS, 0))
        self._partials_end = read(end_offset(Role.PARTIALS, 0))
        start = job.start_offset(Role.PARTIALS)
        read(scan(Role.PARTIALS, 0, start, self._partials_end, self._partials.apply))
        if windows:
            read(self._index.scan())

    def has_window(self, epoch: int) -> bool:
        """Whether the window of a released epoch is there whole."""
        return epoch in self._index.places

    def stored(self, epochs: Sequence[int]) -> Stored:
        """How much is read for the windows of some epochs."""
        places = [self._index.places[epoch].stored for epoch in epochs]
        return Stored(sum(each.records for each in places), sum(each.bytes for each in places))

    def check(self, first: int, last: int) -> None:
        """Nothing: records have checksums of their own, and are checked whenever they are read."""

    def has_partial(self, epoch: int) -> bool:
        """Whether the partial of an epoch is there."""
        return epoch in self._partials.complete

    def manifests(self) -> Iterator[Manifest]:
        """The manifests that count, in the order of epochs, up to the first undecided epoch."""
        waiting: dict[int, Manifest] = {}
        decisions = Decisions(
            self.job.deployment,
            self.job.fingerprint,
            lambda decision: waiting.update({decision.manifest.epoch: decision.manifest}),
        )
        cursor = LogCursor(
            Role.MANIFESTS,
            self.job.start_offset(Role.MANIFESTS),
            lambda record: decisions.apply(record.offset, record.value),
        )
        epoch: int | None = None
        while self._read(cursor.read_some(self._manifests_end)):
            epoch = decisions.first_epoch if epoch is None else epoch
            while epoch is not None and epoch in waiting:
                yield waiting.pop(epoch)
                epoch += 1

    def window(self, epoch: int) -> Words:
        """The multiset of a window, in canonical order; `ReplayError` if it is gone."""
        words = WordMultiset(self.job.word_form, self._scratch)
        try:
            if not self._read(self._index.read(epoch, words)):
                raise ReplayError(
                    f"{in_words([epoch])} of job {self.job.name} was deleted by retention while "
                    "it was to be read: replay a later part with --from-epoch, or what was counted "
                    "with --from-partials"
                )
            return words.sorted()
        finally:
            words.close()

    def payloads(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Epoch and payload of the partials from `first` to `last`, in the order of epochs."""
        wanted = deque(epoch for epoch in range(first, last + 1) if self.has_partial(epoch))
        found: dict[int, bytes] = {}

        def keep(epoch: int, payload: bytes) -> None:
            if first <= epoch <= last:
                found[epoch] = payload

        partials = self._partial_log(keep)
        cursor = LogCursor(Role.PARTIALS, self.job.start_offset(Role.PARTIALS), partials.apply)
        while wanted:
            while wanted[0] not in found:
                if not self._read(cursor.read_some(self._partials_end)):
                    return
            yield wanted[0], found.pop(wanted.popleft())

    def _partial_log(self, on_partial: Callable[[int, bytes], None] | None = None) -> PartialLog:
        return PartialLog(self.job.deployment, self.job.fingerprint, on_partial)
