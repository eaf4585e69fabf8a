"""The sum of a window's reports: one partial per epoch, a pure function of the window."""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Aggregator
from dpstream.pipeline.stages.partial_log import append_partial
from dpstream.pipeline.stages.window_transform import WindowTransform
from dpstream.topics.chunks import Chunk


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
