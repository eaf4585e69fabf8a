"""What is recorded of a deployment, epoch by epoch: found in its topics, sans I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pipeline.actions import LogCursor, LogRecord, Steps, end_offset
from pipeline.admission import Refusal
from pipeline.attempts import Attempts, read_chunk
from pipeline.decisions import Decision
from pipeline.deployed_job import DeployedJob
from pipeline.epoch_results import PublishedLog
from pipeline.estimate_records import EstimateRecord
from pipeline.multisets import WordMultiset
from pipeline.record_rows import recorded_estimate
from topics.chunks import Chunk
from topics.manifests import Fate
from topics.names import Role
from topics.recordings import RecordedEpoch, RecordedManifest
from topics.words import Words


@dataclass(slots=True)
class _Partition:
    """A partition of the shuffled topic: windows begun, and windows whose turn has not come."""

    cursor: LogCursor
    attempts: Attempts[WordMultiset]
    end: int = 0
    complete: dict[int, tuple[int, WordMultiset]] = field(default_factory=dict)

    @property
    def floor(self) -> int:
        """Below this offset nothing is needed any more."""
        firsts = (first_offset for first_offset, _ in self.complete.values())
        return min((self.attempts.floor(self.cursor.position), *firsts))


class WindowLog:
    """Finds released windows in the topic, each in the first attempt that is complete.

    Windows that come before their turn wait as the shuffle stage holds them: as counts, or spilled.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
        floors: where to begin reading, by partition; what is not named from the deployment's start.
    """

    def __init__(self, job: DeployedJob, first: int, floors: Mapping[int, int]) -> None:
        self._job = job
        self._next = first
        self._checks = job.aggregator()
        self._partitions: dict[int, _Partition] = {}
        for number in range(len(job.start_offsets[Role.SHUFFLED])):
            start = max(job.start_offset(Role.SHUFFLED, number), floors.get(number, 0))
            visit = partial(self._take_in, number)
            self._partitions[number] = _Partition(
                LogCursor(Role.SHUFFLED, start, visit, number),
                Attempts(lambda: WordMultiset(job.word_form), self._add),
            )

    @property
    def floors(self) -> dict[int, int]:
        """Where to begin reading for all windows that have not been taken, by partition."""
        return {number: partition.floor for number, partition in self._partitions.items()}

    def look(self) -> Steps[None]:
        """See how far the topic goes by now."""
        for number, partition in self._partitions.items():
            partition.end = yield from end_offset(Role.SHUFFLED, number)

    def take(self, epoch: int) -> Steps[Words | None]:
        """The window of an epoch in canonical order; None if the topic does not have it whole."""
        partition = self._partitions[self._job.partition_of(epoch)]
        while epoch not in partition.complete:
            if not (yield from partition.cursor.read_some(partition.end)):
                return None
        _, multiset = partition.complete[epoch]
        try:
            return multiset.sorted()
        finally:
            multiset.close()

    def pass_over(self, epoch: int) -> None:
        """Forget an epoch and all before it, whatever the topic may still hold of them."""
        self._next = epoch + 1
        for partition in self._partitions.values():
            for done in [each for each in partition.complete if each <= epoch]:
                del partition.complete[done]
            partition.attempts.drop(lambda each: each <= epoch)

    def _take_in(self, number: int, record: LogRecord) -> None:
        partition = self._partitions[number]
        chunk = read_chunk(self._job, record.value)
        if isinstance(chunk, Refusal) or chunk.epoch < self._next:
            return
        if chunk.epoch in partition.complete:
            return
        try:
            attempt = partition.attempts.take_in(record.offset, chunk)
        except ValueError:
            return  # The aggregate stage refuses it too, and keeps it as a dead letter.
        if attempt is not None:
            partition.complete[chunk.epoch] = (attempt.first_offset, attempt.content)
            partition.attempts.drop(lambda each: each == chunk.epoch)

    def _add(self, multiset: WordMultiset, chunk: Chunk) -> None:
        values, form = chunk.words.values, self._job.word_form
        if values.dtype != form.dtype or values.shape[1] != form.width:
            raise ValueError("reports of another form")
        if form.distinct is not None and values.size and int(values.max()) >= form.distinct:
            raise ValueError("a report that the protocol does not have")
        self._checks.check_words(self._job.local_epoch(chunk.epoch), values)
        multiset.add(chunk.words)


class RecordLog:
    """The published epochs of a deployment in order, with all that is recorded of them.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
        floors: as of `WindowLog`.
    """

    def __init__(self, job: DeployedJob, first: int, floors: Mapping[int, int]) -> None:
        self._published = PublishedLog(job, first)
        self._windows = WindowLog(job, first, floors)
        self._found: tuple[EstimateRecord, Decision, bytes | None] | None = None

    @property
    def floors(self) -> dict[int, int]:
        """Where to begin reading windows for all epochs to come."""
        return self._windows.floors

    def look(self) -> Steps[None]:
        """See how far the topics go by now: `next` reads up to there."""
        # In this order: windows were written before what is made of them.
        yield from self._published.look()
        yield from self._windows.look()

    def next(self) -> Steps[RecordedEpoch | None]:
        """The next published epoch; None if there is no further one yet.

        A released window that is None has been deleted: it was whole when it was aggregated. Where
        reading is given up, the epoch comes again.
        """
        if self._found is None:
            self._found = yield from self._published.next()
        if self._found is None:
            return None
        record, decision, payload = self._found
        window = None
        if record.fate is Fate.RELEASED:
            window = yield from self._windows.take(record.epoch)
        self._windows.pass_over(record.epoch)
        self._found = None
        return RecordedEpoch(
            RecordedManifest(decision.manifest, decision.offset),
            window,
            payload,
            recorded_estimate(record),
        )
