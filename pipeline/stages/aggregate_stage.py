"""The aggregate stage: one partial per epoch, a pure function of the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.actions import Append, Steps
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.sealing_keys import NO_KEYS, KeyRing
from pipeline.protocols.protocol import Aggregator
from pipeline.stages.boxes_of_windows import IncreasingBoxes, ReportReader
from pipeline.stages.chunk_stage import ChunkStage
from pipeline.stages.finished_windows import WindowListener, ignore_window
from topics.chunks import Chunk
from topics.names import Role
from topics.partials import encode_partial, split_partial


@dataclass(slots=True)
class Total:
    """What the chunks of an attempt add up to."""

    aggregator: Aggregator
    order: IncreasingBoxes = field(default_factory=IncreasingBoxes)


class AggregateStage(ChunkStage[Total]):
    """Turns the chunks of ``<job>.shuffled`` into the partials of ``<job>.partials``.

    Args:
        job: the deployed job.
        keys: of who adds up, where reports are sealed.
        listener: is told of every window whose partial this worker has written.

    Raises:
        SealingKeyError: reports are sealed, and the private keys are not there.
    """

    def __init__(
        self,
        job: DeployedJob,
        keys: KeyRing = NO_KEYS,
        *,
        listener: WindowListener = ignore_window,
    ) -> None:
        super().__init__(job, Role.SHUFFLED, listener, writes_once=False)
        self._reader = ReportReader(job, keys)

    def _begin(self) -> Total:
        return Total(self._job.aggregator())

    def _add(self, content: Total, chunk: Chunk) -> None:
        sealed = self._job.sealed is not None
        if sealed:
            content.order.add(chunk.index, chunk.words, self._job.form_of(self.role))
        reports = self._reader.add(content.aggregator, chunk.epoch, chunk.words)
        self.counts["reports"] += reports
        if sealed:
            self.counts["chaff"] += chunk.words.messages - reports

    def _write(self, chunk: Chunk, parts: Sequence[Total]) -> Steps[None]:
        total = parts[0].aggregator
        if len(parts) > 1:
            # Into a new state: those of the parts are needed again if this one does not arrive.
            total = self._job.aggregator()
            for part in parts:
                total.merge(part.aggregator)
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
