"""The aggregate stage: one partial per epoch, a pure function of the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Append, Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.boxes_of_windows import IncreasingBoxes, ReportReader
from dpstream.pipeline.stages.chunk_stage import ChunkStage
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.topics.chunks import Chunk
from dpstream.topics.names import Role
from dpstream.topics.partials import encode_partial, split_partial


@dataclass(slots=True)
class Total:
    """What the chunks of an attempt add up to.

    Attributes:
        aggregator: of their words, unless they wait for those of other parts.
        order: of boxes.
        opened: of a part of a window of sealed reports, what its boxes hold; see
            `ReportReader.add_named`.
        boxes: how many there were of these.
    """

    aggregator: Aggregator
    order: IncreasingBoxes = field(default_factory=IncreasingBoxes)
    opened: WordMultiset | None = None
    boxes: int = 0


class AggregateStage(ChunkStage[Total]):
    """Turns the chunks of ``<job>.shuffled`` into the partials of ``<job>.partials``.

    Args:
        job: the deployed job.
        keys: of who adds up, where reports are sealed.
        scratch: opens scratch files for large windows, where instances seal.
        listener: is told of every window whose partial this worker has written.

    Raises:
        WrongKeyError: reports are sealed, and the private keys are not there.
    """

    def __init__(
        self,
        job: DeployedJob,
        keys: KeyRing = NO_KEYS,
        *,
        scratch: Scratch = temporary_file,
        listener: WindowListener = ignore_window,
    ) -> None:
        super().__init__(job, Role.SHUFFLED, listener, writes_once=False)
        self._reader = ReportReader(job, keys)
        self._scratch = scratch

    def _begin(self) -> Total:
        opened = None
        if self._job.sealed is not None and self._instances > 1:
            opened = WordMultiset(self._reader.named_form, self._scratch)
        return Total(self._job.aggregator(), opened=opened)

    def _add(self, content: Total, chunk: Chunk) -> None:
        sealed = self._job.sealed is not None
        if sealed:
            content.order.add(chunk.index, chunk.words, self._job.form_of(self.role))
        if content.opened is not None:
            content.opened.add(self._reader.open_named(chunk.epoch, chunk.words))
            content.boxes += chunk.words.messages
            return
        reports = self._reader.add(content.aggregator, chunk.epoch, chunk.words)
        self.counts["reports"] += reports
        if sealed:
            self.counts["chaff"] += chunk.words.messages - reports

    def _end(self, content: Total) -> None:
        if content.opened is not None:
            content.opened.close()

    def _write(self, chunk: Chunk, parts: Sequence[Total]) -> Steps[None]:
        total = parts[0].aggregator
        if len(parts) > 1:
            # Into a new state: those of the parts are needed again if this one does not arrive.
            total = self._job.aggregator()
            for part in parts:
                total.merge(part.aggregator)
            if opened := [part.opened for part in parts if part.opened is not None]:
                reports = yield from self._reader.add_named(total, chunk.epoch, opened)
                self.counts["reports"] += reports
                self.counts["chaff"] += sum(part.boxes for part in parts) - reports
        records = split_partial(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=chunk.epoch,
            manifest_offset=chunk.manifest_offset,
            attempt=chunk.attempt,
            payload=total.to_bytes(),
        )
        for record in records:
            yield Append(Role.PARTIALS, 0, encode_partial(record))
        self.counts["partials"] += 1
