"""A further shuffle stage in series: opens a layer of every report, and forgets the order again.

It decides nothing: windows are those of the first stage. What goes in and what comes out are boxes
of other keys, each in the order of its bytes. So who holds the keys of all other stages, and the
aggregate key, still cannot say which report is whose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.sealed import input_role, output_role, stage_party
from dpstream.pipeline.jobs.sealing_keys import KeyRing
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.boxes_of_windows import BoxOpener, IncreasingBoxes, boxes_in_order
from dpstream.pipeline.stages.chunk_stage import ChunkStage
from dpstream.pipeline.stages.finished_windows import WindowListener, ignore_window
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.scratch import Scratch, temporary_file
from dpstream.topics.chunks import Chunk
from dpstream.topics.words import Words


@dataclass(slots=True)
class Opened:
    """What the chunks of an attempt hold, without their outermost boxes."""

    words: WordMultiset
    order: IncreasingBoxes = field(default_factory=IncreasingBoxes)


class HopStage(ChunkStage[Opened]):
    """Turns the chunks of one shuffle stage into those of the next, or of ``<job>.shuffled``.

    A window that is complete is opened, sorted and written, as an attempt of this stage. When a
    partition is taken over, windows that were not committed are written again: another attempt, and
    whoever reads it takes the first one that is complete.

    Args:
        job: whose reports are sealed, by more than one stage.
        index: of the stage, 1 for the second one.
        keys: of this stage.
        identifiers: makes the random 16-byte ids of attempts.
        scratch: opens scratch files for large windows.
        listener: is told of every window that this worker has passed on.

    Raises:
        WrongKeyError: the stage's private keys are not there.
    """

    def __init__(
        self,
        job: DeployedJob,
        index: int,
        keys: KeyRing,
        *,
        identifiers: Callable[[], bytes],
        scratch: Scratch = temporary_file,
        listener: WindowListener = ignore_window,
    ) -> None:
        assert job.sealed is not None
        super().__init__(job, input_role(index), listener, writes_once=True)
        self._output = output_role(index, len(job.sealed.stages))
        self._opener = BoxOpener(job, stage_party(index), keys)
        self._identifiers = identifiers
        self._scratch = scratch

    def _begin(self) -> Opened:
        return Opened(WordMultiset(self._job.form_of(self._output), self._scratch))

    def _add(self, content: Opened, chunk: Chunk) -> None:
        content.order.add(chunk.index, chunk.words, self._job.form_of(self.role))
        inner = self._opener.open(chunk.epoch, chunk.words.values)
        content.words.add(Words(inner))
        self.counts["reports"] += len(inner)
        self.counts["boxes that do not open"] += chunk.words.rows - len(inner)

    def _end(self, content: Opened) -> None:
        content.words.close()

    def _write(self, chunk: Chunk, parts: Sequence[Opened]) -> Steps[None]:
        # Stages in series pass on what one stage has decided: there are no instances.
        (content,) = parts
        pieces = yield from boxes_in_order(content.words)
        yield from chunks_of_attempt(
            self._job,
            self._output,
            chunk.epoch,
            chunk.manifest_offset,
            self._identifiers(),
            pieces,
        )
        content.words.close()
        self.counts["windows"] += 1
