"""The sum of a window's reports: one partial per epoch, a pure function of the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealed import AGGREGATE
from dpstream.pipeline.jobs.sealing_keys import KeyRing
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.boxes_of_windows import IncreasingBoxes, ReportReader
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.partial_log import append_partial
from dpstream.pipeline.stages.scratch import Scratch
from dpstream.pipeline.stages.window_transform import WindowTransform
from dpstream.topics.chunks import Chunk
from dpstream.topics.words import Words


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


class AddedReports(WindowTransform[Total]):
    """Turns the chunks of ``<job>.shuffled`` into the partials of ``<job>.partials``.

    Args:
        job: the deployed job.
        keys: of who adds up, where reports are sealed.
        scratch: opens scratch files for large windows, where instances seal.

    Raises:
        WrongKeyError: reports are sealed, and the private keys are not there.
    """

    def __init__(self, job: DeployedJob, keys: KeyRing, scratch: Scratch) -> None:
        super().__init__()
        self._job = job
        self._reader = ReportReader(job, keys)
        self._added = AddedDevices(job, AGGREGATE, keys)
        self._scratch = scratch

    def begin(self) -> Total:
        """See `WindowTransform.begin`."""
        opened = None
        if self._job.sealed is not None and self._job.window_parts > 1:
            opened = WordMultiset(self._reader.named_form, self._scratch)
        return Total(self._job.aggregator(), opened=opened)

    def add(self, content: Total, chunk: Chunk) -> None:
        """See `WindowTransform.add`."""
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

    def end(self, content: Total) -> None:
        """See `WindowTransform.end`."""
        if content.opened is not None:
            content.opened.close()

    def write(self, chunk: Chunk, parts: Sequence[Total]) -> Steps[None]:
        """See `WindowTransform.write`."""
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
        added = self._added.words(chunk.epoch)
        if added is not None:
            total = added_to(self._job, total, chunk.epoch, added)
        payload = total.to_bytes()
        yield from append_partial(
            self._job, self.partials, chunk.epoch, chunk.manifest_offset, chunk.attempt, payload
        )
        self.counts["partials"] += 1


def added_to(job: DeployedJob, total: Aggregator, epoch: int, added: Words) -> Aggregator:
    """A state with the reports of added devices, too; the one given stays as it is."""
    both = job.aggregator()
    both.merge(total)
    both.add(job.local_epoch(epoch), added.values, added.counts)
    return both
