"""Aggregate a window's sealed reports and this party's added devices into one partial per epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealed import AGGREGATE
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.ciphertexts_of_windows import IncreasingCiphertexts, ReportReader
from dpstream.pipeline.stages.environment import OpenSpillFile
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.partial_log import append_partial
from dpstream.pipeline.stages.window_transform import WindowTransform, merged
from dpstream.topics.chunks import Chunk
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages


@dataclass(slots=True)
class Total:
    """Sum of an attempt's chunks; with parallel shufflers, the decrypted partial window instead."""

    aggregator: Aggregator
    opened: MessageMultiset | None
    order: IncreasingCiphertexts = field(default_factory=IncreasingCiphertexts)
    ciphertexts: int = 0


class AddedCiphertexts(WindowTransform[Total]):
    def __init__(self, job: DeployedJob, keys: KeyRing, open_spill_file: OpenSpillFile) -> None:
        super().__init__()
        self._job = job
        self._reader = ReportReader(job, keys)
        self._added = AddedDevices(job, AGGREGATE, keys)
        self._open_spill_file = open_spill_file

    def begin(self) -> Total:
        opened = None
        if self._job.partial_window_count > 1:
            opened = MessageMultiset(self._reader.named_format, self._open_spill_file)
        return Total(self._job.aggregator(), opened)

    def add(self, content: Total, chunk: Chunk) -> None:
        content.order.add(chunk.index, chunk.words, self._job.format_of(self.role))
        if content.opened is not None:
            content.opened.add(self._reader.open_named(chunk.epoch, chunk.words))
            content.ciphertexts += chunk.words.messages
            return
        reports = self._reader.add(content.aggregator, chunk.epoch, chunk.words)
        self._count(reports, chunk.words.messages)

    def end(self, content: Total) -> None:
        if content.opened is not None:
            content.opened.close()

    def write(self, chunk: Chunk, partial_windows: Sequence[Total]) -> Steps[None]:
        total = merged(self._job, [partial_window.aggregator for partial_window in partial_windows])
        if opened := [
            partial_window.opened
            for partial_window in partial_windows
            if partial_window.opened is not None
        ]:
            reports = yield from self._reader.add_named(total, chunk.epoch, opened)
            self._count(
                reports, sum(partial_window.ciphertexts for partial_window in partial_windows)
            )
        added = self._added.words(chunk.epoch)
        if added is not None:
            total = added_to(self._job, total, chunk.epoch, added)
        payload = total.to_bytes()
        yield from append_partial(
            self._job, self.partials, chunk.epoch, chunk.manifest_offset, chunk.attempt, payload
        )
        self.counts["partials"] += 1

    def _count(self, reports: int, ciphertexts: int) -> None:
        self.counts["reports"] += reports
        self.counts["cover traffic"] += ciphertexts - reports


def added_to(job: DeployedJob, total: Aggregator, epoch: int, added: Messages) -> Aggregator:
    both = job.aggregator()
    both.merge(total)
    both.add(job.epochs.local(epoch), added.values, added.counts)
    return both


def ciphertext_aggregator(
    job: DeployedJob, keys: KeyRing
) -> Callable[[Manifest, Iterable[Messages]], bytes]:
    reader = ReportReader(job, keys)
    added = AddedDevices(job, AGGREGATE, keys)

    def add(manifest: Manifest, chunks: Iterable[Messages]) -> bytes:
        aggregator = job.aggregator()
        for words in chunks:
            reader.add(aggregator, manifest.epoch, words)
        own = added.words(manifest.epoch)
        if own is not None:
            aggregator = added_to(job, aggregator, manifest.epoch, own)
        return aggregator.to_bytes()

    return add
