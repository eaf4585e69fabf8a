"""A further shuffle stage in series: opens a layer of every report, and forgets the order again.

It adds devices of its own (`added_devices`). It decides nothing: windows are those of the first
stage. What goes in and what comes out are boxes of other keys, each in the order of its bytes. So
who holds the keys of all other stages, and the aggregate key, still cannot say which report is
whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Steps, Yield
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealed import input_role, output_role, stage_party
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.boxes_of_windows import BoxOpener, IncreasingBoxes, boxes_in_order
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.window_transform import WindowTransform
from dpstream.topics.chunks import Chunk
from dpstream.topics.words import Words


@dataclass(slots=True)
class Opened:
    """What the chunks of an attempt hold, without their outermost boxes."""

    words: WordMultiset
    order: IncreasingBoxes = field(default_factory=IncreasingBoxes)


class OpenedLayers(WindowTransform[Opened]):
    """Turns the chunks of one shuffle stage into those of the next, or of ``<job>.shuffled``.

    A window that is complete is opened, sorted and written, as an attempt of this stage. When a
    partition is taken over, windows that were not committed are written again: another attempt, and
    whoever reads it takes the first one that is complete.

    Args:
        job: whose reports are sealed, by more than one stage.
        index: of the stage, 1 for the second one.
        environment: see there.

    Raises:
        WrongKeyError: the stage's private keys are not there.
    """

    writes_once = True

    def __init__(self, job: DeployedJob, index: int, environment: Environment) -> None:
        assert job.sealed is not None
        super().__init__()
        self.role = input_role(index)
        self._job = job
        self._output = output_role(index, len(job.sealed.stages))
        self._opener = BoxOpener(job, stage_party(index), environment.keys)
        self._added = AddedDevices(job, stage_party(index), environment.keys)
        self._environment = environment

    def begin(self) -> Opened:
        """See `WindowTransform.begin`."""
        return Opened(WordMultiset(self._job.form_of(self._output), self._environment.scratch))

    def add(self, content: Opened, chunk: Chunk) -> None:
        """See `WindowTransform.add`."""
        content.order.add(chunk.index, chunk.words, self._job.form_of(self.role))
        inner = self._opener.open(chunk.epoch, chunk.words.values)
        content.words.add(Words(inner))
        self.counts["reports"] += len(inner)
        self.counts["boxes that do not open"] += chunk.words.rows - len(inner)

    def end(self, content: Opened) -> None:
        """See `WindowTransform.end`."""
        content.words.close()

    def write(self, chunk: Chunk, parts: Sequence[Opened]) -> Steps[None]:
        """See `WindowTransform.write`."""
        # Stages in series pass on what one stage has decided: there are no instances.
        (content,) = parts
        for added in self._added.boxes(chunk.epoch, self._output):
            content.words.add(Words(added))
            yield Yield()
        pieces = yield from boxes_in_order(content.words)
        yield from chunks_of_attempt(
            self._job,
            self._output,
            chunk.epoch,
            chunk.manifest_offset,
            self._environment.identifiers(),
            pieces,
        )
        content.words.close()
        self.counts["windows"] += 1
