"""What a stage makes of the windows that it reads in chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, TypeVar

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.partial_log import append_partial
from dpstream.topics.chunks import Chunk
from dpstream.topics.names import Role

Content = TypeVar("Content")


class WindowTransform(ABC, Generic[Content]):
    """Makes something of windows, attempt by attempt.

    Attributes:
        role: the topic whose chunks it reads.
        partials: the topic whose complete partials say which windows are finished.
        writes_once: whether a window that this worker has written is finished at once, and not only
            when its partial is complete.
        counts: what a heartbeat tells of it.
    """

    role: Role = Role.SHUFFLED
    partials: Role = Role.PARTIALS
    writes_once: bool = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def begin(self) -> Content:
        """What the chunks of an attempt are added to."""

    @abstractmethod
    def add(self, content: Content, chunk: Chunk) -> None:
        """Add a chunk; raises `ValueError` for one that is refused, and then leaves all as is."""

    def end(self, content: Content) -> None:
        """Release what an attempt holds, which is not needed any more."""

    @abstractmethod
    def write(self, chunk: Chunk, parts: Sequence[Content]) -> Steps[None]:
        """Write a window that is complete with this chunk, up to what is to be flushed.

        Its parts are what the shuffle instances wrote of it, first the first one's.
        """


class AddedReports(WindowTransform[Aggregator]):
    """Turns the chunks of ``<job>.shuffled`` into the partials of ``<job>.partials``.

    Args:
        job: whose reports are not sealed.
    """

    def __init__(self, job: DeployedJob) -> None:
        super().__init__()
        self._job = job

    def begin(self) -> Aggregator:
        """See `WindowTransform.begin`."""
        return self._job.aggregator()

    def add(self, content: Aggregator, chunk: Chunk) -> None:
        """See `WindowTransform.add`."""
        content.add(self._job.epochs.local(chunk.epoch), chunk.words.values, chunk.words.counts)
        self.counts["reports"] += chunk.words.messages

    def write(self, chunk: Chunk, parts: Sequence[Aggregator]) -> Steps[None]:
        """See `WindowTransform.write`."""
        payload = merged(self._job, parts).to_bytes()
        yield from append_partial(
            self._job, self.partials, chunk.epoch, chunk.manifest_offset, chunk.attempt, payload
        )
        self.counts["partials"] += 1


def merged(job: DeployedJob, parts: Sequence[Aggregator]) -> Aggregator:
    """Return the state of all parts of a window; those stay as they are."""
    if len(parts) == 1:
        return parts[0]
    # Into a new state: those of the parts are needed again if this one does not arrive.
    total = job.aggregator()
    for part in parts:
        total.merge(part)
    return total
