"""Chained shuffler after the first: decrypts one layer of every report, and drops the order again.

It adds its own devices (`added_devices`). It decides nothing: the first shuffler decides windows.
The input and the output of this stage are ciphertexts under different keys, both sorted by their
bytes. Even a holder of the keys of all other stages and of the aggregate key therefore cannot tell
which report is whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dpstream.pipeline.actions import Steps, Yield
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.routes import stage_party
from dpstream.pipeline.stages.added_devices import AddedDevices
from dpstream.pipeline.stages.attempts import chunks_of_attempt
from dpstream.pipeline.stages.ciphertexts_of_windows import (
    Decryptor,
    IncreasingCiphertexts,
    ciphertexts_in_order,
)
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.window_transform import WindowTransform
from dpstream.topics.chunks import Chunk
from dpstream.topics.messages import Messages


@dataclass(slots=True)
class Opened:
    words: MessageMultiset
    order: IncreasingCiphertexts = field(default_factory=IncreasingCiphertexts)


class OpenedLayers(WindowTransform[Opened]):
    """Turn one shuffler's chunks into the next one's; `index` is 1 for the second stage."""

    writes_once = True

    def __init__(self, job: DeployedJob, index: int, environment: Environment) -> None:
        assert job.sealed is not None
        super().__init__()
        self.role = job.route.hops[index - 1]
        self._job = job
        self._output = job.route.output(index)
        self._opener = Decryptor(job, stage_party(index), environment.keys)
        self._added = AddedDevices(job, stage_party(index), environment.keys)
        self._environment = environment

    def begin(self) -> Opened:
        return Opened(
            MessageMultiset(self._job.format_of(self._output), self._environment.open_spill_file)
        )

    def add(self, content: Opened, chunk: Chunk) -> None:
        content.order.add(chunk.index, chunk.words, self._job.format_of(self.role))
        inner = self._opener.open(chunk.epoch, chunk.words.values)
        content.words.add(Messages(inner))
        self.counts["reports"] += len(inner)
        self.counts["ciphertexts that do not open"] += chunk.words.rows - len(inner)

    def end(self, content: Opened) -> None:
        content.words.close()

    def write(self, chunk: Chunk, partial_windows: Sequence[Opened]) -> Steps[None]:
        # Chained shufflers forward one shuffler's decision: there are no parallel shufflers.
        (content,) = partial_windows
        for added in self._added.ciphertexts(chunk.epoch, self._output):
            content.words.add(Messages(added))
            yield Yield()
        chunks = yield from ciphertexts_in_order(content.words)
        yield from chunks_of_attempt(
            self._job,
            self._output,
            chunk.epoch,
            chunk.manifest_offset,
            self._environment.identifiers(),
            chunks,
        )
        content.words.close()
        self.counts["windows"] += 1
