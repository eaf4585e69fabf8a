"""Input to a replay from a deployment's topics, as long as retention keeps its windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from dpstream.pipeline.actions import Run, end_offset, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.replays import ReplayError
from dpstream.pipeline.recording.replay.sources import Stored, in_words
from dpstream.pipeline.results.released_windows import WindowIndex
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.environment import temporary_file
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.manifests import Manifest
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role


class TopicSource:
    """The topics of a deployment; `windows` is False if no window is read."""

    def __init__(self, job: DeployedJob, read: Run, *, windows: bool = True) -> None:
        self.job = job
        self.place = f"the topics of job {job.name}"
        self._read = read
        self._index = WindowIndex(job)
        self._partials = PartialLog(job)
        self._manifests_end = read(end_offset(Role.MANIFESTS, 0))
        self._partials_end = read(end_offset(Role.PARTIALS, 0))
        start = job.start_offset(Role.PARTIALS)
        read(scan(Role.PARTIALS, 0, start, self._partials_end, self._partials.apply))
        if windows:
            read(self._index.find_end())
            read(self._index.scan())

    def has_window(self, epoch: int) -> bool:
        return epoch in self._index.places

    def stored(self, epochs: Sequence[int]) -> Stored:
        places = [self._index.places[epoch] for epoch in epochs]
        return Stored(sum(each.records for each in places), sum(each.bytes for each in places))

    def check(self, first: int, windows_from: int, last: int) -> None:
        """Do nothing: records have their own checksums, which every read verifies."""

    def has_partial(self, epoch: int) -> bool:
        return epoch in self._partials.complete

    def manifests(self) -> Iterator[Manifest]:
        waiting: dict[int, Manifest] = {}
        decisions = DecisionLog(
            self.job,
            lambda decision: waiting.update({decision.manifest.epoch: decision.manifest}),
        )
        cursor = self.job.cursor(Role.MANIFESTS, decisions.apply)
        cursor.end = self._manifests_end
        epoch: int | None = None
        while self._read(cursor.read_some()):
            epoch = decisions.first_epoch if epoch is None else epoch
            while epoch is not None and epoch in waiting:
                yield waiting.pop(epoch)
                epoch += 1

    def window(self, epoch: int) -> Messages:
        words = self._read(self._index.read(epoch, temporary_file))
        if words is None:
            raise ReplayError(
                f"{in_words([epoch])} of job {self.job.name} was deleted by retention during "
                "the replay: replay later epochs with --from-epoch, or only the counts with "
                "--from-partials"
            )
        return words

    def payloads(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        replay_range = deque(epoch for epoch in range(first, last + 1) if self.has_partial(epoch))
        found: dict[int, bytes] = {}

        def keep(epoch: int, payload: bytes) -> None:
            if first <= epoch <= last:
                found[epoch] = payload

        partials = PartialLog(self.job, keep)
        cursor = self.job.cursor(Role.PARTIALS, partials.apply)
        cursor.end = self._partials_end
        while replay_range:
            while replay_range[0] not in found:
                if not self._read(cursor.read_some()):
                    return
            yield replay_range[0], found.pop(replay_range.popleft())
