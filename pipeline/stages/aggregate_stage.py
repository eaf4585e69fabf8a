"""The aggregate stage: one partial per epoch, a pure function of the window.

Chunks are added up per attempt, an attempt being one writing of a window by a shuffle worker. The
first attempt that is complete becomes the epoch's partial; all others of the epoch are dropped, so
that what a killed or paused writer left behind never holds the floor.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipeline.actions import Append, Commit, Flush, Steps
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.protocols.protocol import Aggregator
from pipeline.stages.admission import Refusal, dead_letter
from pipeline.stages.attempts import Attempt, Attempts, read_chunk
from pipeline.stages.finished_windows import FinishedWindow, WindowListener, ignore_window
from pipeline.stages.partial_log import PartialLog
from topics.chunks import Chunk
from topics.manifests import Fate
from topics.names import Role
from topics.partials import encode_partial, split_partial
from topics.records import Reason


@dataclass(slots=True)
class _Partition:
    """What the stage knows of a partition it owns."""

    number: int
    position: int
    floor: int
    attempts: Attempts[Aggregator]


class AggregateStage:
    """Turns the chunks of ``<job>.shuffled`` into the partials of ``<job>.partials``.

    Args:
        job: the deployed job.
        listener: is told of every window whose partial this worker has written.
    """

    role = Role.SHUFFLED

    def __init__(self, job: DeployedJob, *, listener: WindowListener = ignore_window) -> None:
        self._job = job
        self._listener = listener
        self._partitions: dict[int, _Partition] = {}
        self._partials = PartialLog(job)
        self._partial_log = job.cursor(Role.PARTIALS, self._partials.apply)
        self._unflushed = False
        self.counts: Counter[str] = Counter()

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        """Take a partition over; returns the offset from which its records are to be shown."""
        self.revoke(partition)
        start = self._job.start_offset(Role.SHUFFLED, partition)
        floor = start if committed is None else max(start, committed)
        yield from self._partial_log.catch_up()
        attempts = Attempts(self._job.aggregator, self._add)
        self._partitions[partition] = _Partition(partition, floor, floor, attempts)
        return floor

    def revoke(self, partition: int) -> None:
        """Forget a partition."""
        self._partitions.pop(partition, None)

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        """Take in one chunk; the last one of an attempt makes the epoch's partial."""
        state = self._partitions[partition]
        state.position = offset + 1
        chunk = read_chunk(self._job, partition, value)
        if isinstance(chunk, Refusal):
            yield from self._refuse(state, offset, value, chunk)
            return
        if chunk.epoch in self._partials.complete:
            return
        try:
            attempt = state.attempts.take_in(offset, chunk, now)
        except ValueError as error:
            yield from self._refuse(state, offset, value, Refusal(Reason.PROTOCOL, str(error)))
            return
        if attempt is not None:
            yield from self._write(state, chunk, attempt)

    def tick(self, now: float) -> Steps[None]:
        """Drop the attempts at epochs that others finished; commit the floor."""
        if not self._partitions:
            return
        yield from self._partial_log.catch_up()
        for state in list(self._partitions.values()):
            yield from self._commit_floor(state)

    def unfinished(self, partition: int) -> str:
        """Epochs without a partial."""
        complete = self._partials.complete
        first = complete.first_missing(complete.lowest or 1)
        while first in complete or self._job.partition_of(first) != partition:
            first += 1
        return f"epoch {first} and later ones of its partition"

    def heartbeat(self) -> dict[str, object]:
        """What has been counted so far, and the windows that are not complete yet."""
        epochs = set().union(*(state.attempts.epochs for state in self._partitions.values()))
        return {"open_windows": len(epochs), "counts": dict(self.counts)}

    def _add(self, aggregator: Aggregator, chunk: Chunk) -> None:
        epoch = self._job.local_epoch(chunk.epoch)
        aggregator.add(epoch, chunk.words.values, chunk.words.counts)
        self.counts["reports"] += chunk.words.messages

    def _write(self, state: _Partition, chunk: Chunk, attempt: Attempt[Aggregator]) -> Steps[None]:
        parts = split_partial(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=chunk.epoch,
            manifest_offset=chunk.manifest_offset,
            attempt=chunk.attempt,
            payload=attempt.content.to_bytes(),
        )
        for part in parts:
            yield Append(Role.PARTIALS, 0, encode_partial(part))
        yield Flush()
        self._unflushed = False
        yield from self._partial_log.catch_up()
        self.counts["partials"] += 1
        self._listener(FinishedWindow(chunk.epoch, Fate.RELEASED, began=attempt.began))
        yield from self._commit_floor(state)

    def _refuse(
        self, state: _Partition, offset: int, value: bytes, refusal: Refusal
    ) -> Steps[None]:
        self._unflushed = True
        self.counts[f"dead letters {refusal.reason.value}"] += 1
        yield dead_letter(self._job, self.role, state.number, offset, value, refusal)

    def _commit_floor(self, state: _Partition) -> Steps[None]:
        """Commit the first offset of the oldest attempt that may still become a partial."""
        state.attempts.drop(self._partials.complete.__contains__)
        floor = state.attempts.floor(state.position)
        if floor <= state.floor:
            return
        if self._unflushed:
            yield Flush()
            self._unflushed = False
        yield Commit(self.role, state.number, floor)
        state.floor = floor
