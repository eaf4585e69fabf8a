"""Read released windows in chunks, and write the result of a `WindowTransform`.

The first complete attempt at an epoch is its window; with parallel shufflers, the first complete
attempt by each of them. All other attempts are dropped, so that leftovers from a killed or paused
writer never hold back the committed offset, the *floor*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic

from dpstream.pipeline.actions import Commit, Flush, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.admission import Rejection, dead_letter
from dpstream.pipeline.stages.attempts import Attempt, Attempts, read_chunk
from dpstream.pipeline.stages.deleted_records import needs_below
from dpstream.pipeline.stages.environment import FinishedWindow, WindowListener
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.partial_log import CompletePartials
from dpstream.pipeline.stages.window_transform import Content, WindowTransform
from dpstream.topics.chunks import Chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.records import Reason

# Seconds for which a window can stay incomplete before earlier records are searched for its
# partial.
_LONG_SECONDS = 30.0


@dataclass(slots=True)
class _ChunkPartition(Generic[Content]):
    """State of an owned partition: first complete attempts by shuffler, and finished epochs."""

    number: int
    position: int
    floor: int
    attempts: Attempts[Content]
    partial_windows: dict[int, dict[int, Attempt[Content]]] = field(default_factory=dict)
    written: EpochSet = field(default_factory=EpochSet)


class ChunkStage(Generic[Content]):
    def __init__(
        self, job: DeployedJob, transform: WindowTransform[Content], listener: WindowListener
    ) -> None:
        self.role = transform.role
        self._job = job
        self._transform = transform
        self._listener = listener
        self._instances = job.partial_window_count if self.role is job.route.decided else 1
        self._partitions: dict[int, _ChunkPartition[Content]] = {}
        self._partials = CompletePartials(job, transform.partials)
        self._unflushed = False
        self.counts = transform.counts

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        self.revoke(partition)
        start = self._job.start_offset(self.role, partition)
        floor = start if committed is None else max(start, committed)
        yield from self._partials.catch_up()
        while not self._partials.whole and self._first_complete(partition) is None:
            yield from self._partials.read_back()
        transform = self._transform
        attempts = Attempts(transform.begin, transform.add, transform.end)
        self._partitions[partition] = _ChunkPartition(partition, floor, floor, attempts)
        return floor

    def needs(self, partition: int, below: int) -> Steps[bool]:
        return (yield from needs_below(self._job, self.role, partition, below))

    def revoke(self, partition: int) -> None:
        state = self._partitions.pop(partition, None)
        if state is not None:
            state.attempts.drop(lambda epoch: True)

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        state = self._partitions[partition]
        state.position = offset + 1
        chunk = read_chunk(self._job, partition, value)
        if isinstance(chunk, Chunk) and chunk.instance > self._instances:
            detail = f"shuffle instance: got {chunk.instance}; expected at most {self._instances}"
            chunk = Rejection(Reason.PROTOCOL, detail)
        if isinstance(chunk, Rejection):
            yield from self._reject(state, offset, value, chunk)
            return
        while not self._partials.reach(chunk.epoch):
            yield from self._partials.read_back()
        if self._through(state, chunk.epoch):
            return
        try:
            attempt = state.attempts.take_in(offset, chunk, now)
        except ValueError as error:
            yield from self._reject(state, offset, value, Rejection(Reason.PROTOCOL, str(error)))
            return
        if attempt is None:
            return
        partial_windows = state.partial_windows.setdefault(chunk.epoch, {})
        partial_windows.setdefault(chunk.instance, attempt)
        if len(partial_windows) < self._instances:
            return
        ordered = [partial_windows[instance] for instance in sorted(partial_windows)]
        yield from self._transform.write(
            chunk, [partial_window.content for partial_window in ordered]
        )
        yield from self._partials.flush()
        self._unflushed = False
        state.written.add(chunk.epoch)
        began = min(partial_window.began for partial_window in ordered)
        self._listener(FinishedWindow(chunk.epoch, WindowStatus.RELEASED, began=began))
        yield from self._commit_floor(state)

    def tick(self, now: float) -> Steps[None]:
        if not self._partitions:
            return
        yield from self._partials.catch_up()
        states = list(self._partitions.values())
        if not self._partials.whole and any(self._waits(state, now) for state in states):
            yield from self._partials.read_back()
        for state in states:
            yield from self._commit_floor(state)

    def idle_seconds(self) -> float | None:
        """See `Stage.idle_seconds`; None while an incomplete window holds back the offset."""
        states = self._partitions.values()
        idle = states and all(state.floor == state.position for state in states)
        return math.inf if idle else None

    def unfinished(self, partition: int) -> str:
        complete = self._partials.complete
        first = self._first_complete(partition)
        if first is None or self._partials.whole:
            first = complete.first_missing(complete.lowest or 1)
        while self._job.topics.partition_of(first) != partition or first in complete:
            first += 1
        return f"epoch {first} and later epochs of its partition"

    def heartbeat(self) -> dict[str, object]:
        epochs = set().union(*(state.attempts.epochs for state in self._partitions.values()))
        return {"open_windows": len(epochs), "counts": dict(self.counts)}

    def _first_complete(self, partition: int) -> int | None:
        complete = self._partials.complete
        for epoch in range(complete.lowest, complete.highest + 1):
            if self._job.topics.partition_of(epoch) == partition and epoch in complete:
                return epoch
        return None

    def _waits(self, state: _ChunkPartition[Content], now: float) -> bool:
        """Return whether the partial for an old, incomplete window might be unread."""
        began = state.attempts.began
        return began is not None and now - began >= _LONG_SECONDS

    def _through(self, state: _ChunkPartition[Content], epoch: int) -> bool:
        written = self._transform.writes_once and epoch in state.written
        return written or epoch in self._partials.complete

    def _reject(
        self, state: _ChunkPartition[Content], offset: int, value: bytes, rejection: Rejection
    ) -> Steps[None]:
        self._unflushed = True
        self.counts[f"dead letters {rejection.reason.value}"] += 1
        yield dead_letter(self._job, self.role, state.number, offset, value, rejection)

    def _commit_floor(self, state: _ChunkPartition[Content]) -> Steps[None]:
        state.attempts.drop(lambda epoch: self._through(state, epoch))
        for epoch in [each for each in state.partial_windows if self._through(state, each)]:
            del state.partial_windows[epoch]
        floor = state.attempts.floor(state.position)
        if floor <= state.floor:
            return
        if self._unflushed:
            yield Flush()
            self._unflushed = False
        yield Commit(self.role, state.number, floor)
        state.floor = floor
