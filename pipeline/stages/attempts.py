"""Read and write the windows in ``<job>.shuffled``, in chunks.

An attempt is one write of a window by a shuffler worker. Chunks of two attempts never mix. The
first complete attempt is the window. A killed worker can leave an incomplete attempt behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import place_problem
from dpstream.pipeline.stages.admission import Rejection, identity_rejection, readable
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.names import Role
from dpstream.topics.records import Reason

Content = TypeVar("Content")


def read_chunk(job: DeployedJob, partition: int, value: bytes) -> Chunk | Rejection:
    chunk = readable(decode_chunk, value)
    if isinstance(chunk, Rejection):
        return chunk
    problem = place_problem(job, chunk.epoch, partition)
    misplaced = None if problem is None else Rejection(Reason.EPOCH, problem)
    return identity_rejection(job, chunk) or misplaced or chunk


def chunks_of_attempt(
    job: DeployedJob,
    role: Role,
    epoch: int,
    manifest_offset: int,
    attempt: bytes,
    chunks: Chunks,
    instance: int = 1,
) -> Iterator[Append]:
    for index, words in enumerate(chunks.words):
        chunk = Chunk(
            fingerprint=job.fingerprint,
            deployment=job.deployment,
            epoch=epoch,
            manifest_offset=manifest_offset,
            attempt=attempt,
            index=index,
            total=chunks.total,
            words=words,
            instance=instance,
        )
        yield Append(role, job.topics.partition_of(epoch), encode_chunk(chunk))


@dataclass(slots=True)
class Attempt(Generic[Content]):
    """One write of a window, read since `began` (seconds); it has `total` chunks."""

    first_offset: int
    began: float
    content: Content
    total: int
    indices: set[int] = field(default_factory=set)


class Attempts(Generic[Content]):
    """Attempts read from one partition, by epoch and attempt ID.

    `begin` creates the content to which `add` adds chunks; `end` releases what a dropped attempt
    uses.
    """

    def __init__(
        self,
        begin: Callable[[], Content],
        add: Callable[[Content, Chunk], None],
        end: Callable[[Content], None] = lambda content: None,
    ) -> None:
        self._begin = begin
        self._add = add
        self._end = end
        self._open: dict[tuple[int, bytes], Attempt[Content]] = {}

    @property
    def epochs(self) -> set[int]:
        return {epoch for epoch, _ in self._open}

    @property
    def began(self) -> float | None:
        return min((attempt.began for attempt in self._open.values()), default=None)

    def take_in(self, offset: int, chunk: Chunk, now: float = 0.0) -> Attempt[Content] | None:
        """Add a chunk, and return its attempt if that is now complete.

        Raises `ValueError`, without any effect, if a message is invalid or the total contradicts
        the first chunk.
        """
        attempt = self._open.get((chunk.epoch, chunk.attempt))
        if attempt is None:
            attempt = Attempt(offset, now, self._begin(), chunk.total)
        if chunk.total != attempt.total:
            raise ValueError(
                f"total chunks: got {chunk.total}; the attempt's first chunk states {attempt.total}"
            )
        if chunk.index not in attempt.indices:
            self._add(attempt.content, chunk)
            attempt.indices.add(chunk.index)
            self._open[chunk.epoch, chunk.attempt] = attempt
        return attempt if len(attempt.indices) == attempt.total else None

    def drop(self, finished: Callable[[int], bool]) -> None:
        for epoch, attempt in list(self._open):
            if finished(epoch):
                self._end(self._open.pop((epoch, attempt)).content)

    def floor(self, position: int) -> int:
        """Return the lowest offset still needed once all records before `position` are read."""
        return min((each.first_offset for each in self._open.values()), default=position)
