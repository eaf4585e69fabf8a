"""Transform the windows that a stage reads in chunks."""

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
    """Aggregate or transform windows, attempt by attempt, from the topic `role`.

    A window is finished once this worker has written it (`writes_once`), or else once it has a
    complete partial in the topic `partials`.
    """

    role: Role = Role.SHUFFLED
    partials: Role = Role.PARTIALS
    writes_once: bool = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def begin(self) -> Content: ...

    @abstractmethod
    def add(self, content: Content, chunk: Chunk) -> None:
        """Add a chunk; raises `ValueError`, without any effect, if its messages are invalid."""

    def end(self, content: Content) -> None: ...

    @abstractmethod
    def write(self, chunk: Chunk, partial_windows: Sequence[Content]) -> Steps[None]: ...


class AddedReports(WindowTransform[Aggregator]):
    def __init__(self, job: DeployedJob) -> None:
        super().__init__()
        self._job = job

    def begin(self) -> Aggregator:
        return self._job.aggregator()

    def add(self, content: Aggregator, chunk: Chunk) -> None:
        content.add(self._job.epochs.local(chunk.epoch), chunk.words.values, chunk.words.counts)
        self.counts["reports"] += chunk.words.messages

    def write(self, chunk: Chunk, partial_windows: Sequence[Aggregator]) -> Steps[None]:
        payload = merged(self._job, partial_windows).to_bytes()
        yield from append_partial(
            self._job, self.partials, chunk.epoch, chunk.manifest_offset, chunk.attempt, payload
        )
        self.counts["partials"] += 1


def merged(job: DeployedJob, partial_windows: Sequence[Aggregator]) -> Aggregator:
    """Return one aggregator for all partial windows, which stay unchanged."""
    if len(partial_windows) == 1:
        return partial_windows[0]
    # Merged into a new aggregator, because partial windows are needed again if a write fails.
    total = job.aggregator()
    for partial_window in partial_windows:
        total.merge(partial_window)
    return total
