"""Read the messages in decided windows from the raw topic, and write them without their origin.

The manifest determines the result: repeated writes differ only in attempt IDs and random order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from dpstream.pipeline.actions import Flush, LogRecord, Steps, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.admission import Admission, Rejection
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.decision_log import Decision
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.pipeline.stages.windows import PunctuationError, Window
from dpstream.topics.batches import Batch, Punctuation, drawing_of
from dpstream.topics.manifests import Manifest
from dpstream.topics.names import Role


class WindowsAgain(Protocol):
    def read(self, manifest: Manifest, /) -> Steps[MessageMultiset]: ...


class ProducerWindows:
    def __init__(
        self,
        job: DeployedJob,
        admission: Admission,
        registry: ProducerRegistry,
        multiset: Callable[[], MessageMultiset],
        role: Role,
    ) -> None:
        self._job = job
        self._admission = admission
        self._registry = registry
        self._multiset = multiset
        self._role = role

    def read(self, manifest: Manifest) -> Steps[MessageMultiset]:
        """See `WindowsAgain`; the registry must have all producers in the manifest."""
        partition = self._job.topics.partition_of(manifest.epoch)
        window = Window(manifest.epoch, 0.0, self._multiset)
        inside = drawings_in(manifest, self._registry)

        def collect(record: LogRecord) -> None:
            admitted = self._admission.admit(partition, record.value)
            if (
                not isinstance(admitted, Rejection)
                and admitted.epoch == manifest.epoch
                and admitted.enrollment in inside
                and inside[admitted.enrollment] in (None, _drawing(admitted))
            ):
                with suppress(PunctuationError):
                    window.add(admitted)

        end = yield from end_offset(self._role, partition)
        stop = min(manifest.cut_offset, end)
        yield from scan(self._role, partition, manifest.first_offset, stop, collect)
        return window.words


class WindowRelease:
    """Release all messages of a window, in canonical order; subclasses implement job options."""

    def released(self, epoch: int, words: MessageMultiset) -> MessageMultiset:
        """Return the multiset to release; this can modify `words`."""
        return words

    def chunks(self, words: MessageMultiset) -> Steps[Chunks]:
        return (yield from words.ordered())


class WindowWriter:
    def __init__(
        self,
        job: DeployedJob,
        windows: WindowsAgain,
        release: WindowRelease,
        identifiers: Callable[[], bytes],
    ) -> None:
        self._job = job
        self._role = job.route.decided
        self._windows = windows
        self._release = release
        self._identifiers = identifiers

    def read(self, manifest: Manifest) -> Steps[MessageMultiset]:
        return (yield from self._windows.read(manifest))

    def write(self, decision: Decision, words: MessageMultiset) -> Steps[None]:
        manifest = decision.manifest
        released = self._release.released(manifest.epoch, words)
        chunks = yield from self._release.chunks(released)
        role, attempt = self._role, self._identifiers()
        yield from chunks_of_attempt(
            self._job, role, manifest.epoch, decision.offset, attempt, chunks, manifest.instance
        )
        yield Flush()
        if released is not words:
            released.close()


def drawings_in(manifest: Manifest, registry: ProducerRegistry) -> dict[bytes, bytes | None]:
    """Return the draw ID for each enrollment ID in a manifest; None if no draw IDs are listed."""
    enrollments = [
        producer.enrollment
        for producer, included in zip(registry, manifest.producers, strict=False)
        if included
    ]
    return dict(zip(enrollments, manifest.drawings or [None] * len(enrollments), strict=True))


def _drawing(record: Batch | Punctuation) -> bytes | None:
    return drawing_of(record.batch) if isinstance(record, Batch) else record.drawing
