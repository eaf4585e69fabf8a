"""The shuffle stage where devices report for themselves and epochs lie in lanes.

Whoever owns a partition has a lane of every epoch that has one there. It closes the lanes beside
the first, decides with the first, and writes its lanes under that decision, all as told in
`device_lanes`. A lane that is closed holds the committed offset until its epoch is decided and, if
it is released, the lane is written: so whoever takes it over has what the closing says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pipeline.actions import LogRecord, Steps
from pipeline.stages.deciding_stage import DecidingPartition
from pipeline.stages.decision_log import Decision, DecisionLog
from pipeline.stages.device_lanes import DeviceLaneDecision, LaneClosings
from pipeline.stages.device_stage import DeviceStage
from pipeline.stages.device_windows import DeviceWindow
from pipeline.stages.multisets import WordMultiset
from topics.manifests import Fate, Manifest

_HELD: Final = 16
"""Windows of closed lanes that a partition holds; what is beyond is read again."""
_EMPTY_AGAIN: Final = 64
"""For so many epochs a lane without any record is taken not to be written: no offset says it is."""
_ANY_FLOOR: Final = 2**63


class DeviceLaneStage(DeviceStage):
    """Turns what collectors write into the chunks of ``<job>.shuffled``, lane by lane.

    Its arguments are those of `DeviceStage`.
    """

    def heartbeat(self) -> dict[str, object]:
        """As of `DeviceStage` of first lanes, which decide; and how many others are open."""
        others = sum(
            window.lane > 1
            for state in self._partitions.values()
            for window in state.windows.values()
        )
        return {**super().heartbeat(), "open_lanes": others}

    def rests(self) -> float | None:
        """See `Stage.rests`; of a lane without any record only its writer knows that it is written.

        Others go on, so that somebody is there to write it if it is not.
        """
        written = all(
            partition in self._partitions and epoch in self._partitions[partition].written
            for epoch, partition in self._empty
        )
        return super().rests() if written else None

    def unfinished(self, partition: int) -> str:
        """See `Stage`: also epochs of which a lane is closed and not decided."""
        state = self._partitions.get(partition)
        if state is None or not state.closed:
            return super().unfinished(partition)
        return f"epoch {min([*state.closed, *state.owed])} and later ones of its partition"

    def _oldest_windows(self) -> list[DeviceWindow]:
        return [window for window in super()._oldest_windows() if window.lane == 1]

    def _begin_logs(self) -> None:
        self._closings = LaneClosings(self._job, self._note_closing)
        self._empty: deque[tuple[int, int]] = deque()
        super()._begin_logs()
        for state in self._partitions.values():
            state.closed.clear()

    def _new_decision(self) -> DeviceLaneDecision:
        return DeviceLaneDecision(
            self._job,
            self._roster,
            self._log,
            self._timeline,
            self._collectors,
            self._population,
            self._closings,
        )

    def _read_manifest(self, record: LogRecord) -> None:
        self._closings.apply(record)
        super()._read_manifest(record)

    def _read_manifests(self, records: Sequence[LogRecord]) -> None:
        # Closings stand between decisions, and come before them.
        for record in records:
            self._read_manifest(record)

    def _log_of(self, epoch: int, partition: int) -> DecisionLog:
        lane = self._job.part_in(epoch, partition)
        return self._log if lane is None or lane == 1 else self._closings.log_of(lane)

    def _is_closed(self, epoch: int, partition: int) -> bool:
        return epoch in self._log.decided or super()._is_closed(epoch, partition)

    def _has_none_of(self, epoch: int, partition: int) -> bool:
        return self._job.part_in(epoch, partition) is None

    def _tells(self, partition: int, floor: int) -> bool:
        closed = (
            self._job.partition_of(epoch, lane)
            for epoch in self._closings.begun
            for lane in self._closings.of(epoch)
        )
        return super()._tells(partition, floor) and partition not in closed

    def _note_closing(self, closing: Decision) -> None:
        """A lane was closed: its owner keeps what it needs, until its epoch is decided."""
        manifest = closing.manifest
        if manifest == self._proposed:
            self._accepted = closing
        state = self._partitions.get(self._job.partition_of(manifest.epoch, manifest.instance))
        if state is not None and manifest.first_offset >= state.floor:
            state.closed[manifest.epoch] = manifest.first_offset

    def _owe(self, decision: Decision) -> None:
        """A decision was made: the owners of all lanes owe their words."""
        super()._owe(decision)
        epoch = decision.manifest.epoch
        for lane, closing in self._closings.take(epoch).items():
            if decision.manifest.fate is Fate.RELEASED:
                self._owe_part(closing.manifest, closing.offset, decision.offset)
            state = self._partitions.get(self._job.partition_of(epoch, lane))
            if state is None:
                continue
            state.closed.pop(epoch, None)
            if epoch not in state.owed and epoch in state.held:
                state.held.pop(epoch).close()

    def _owe_part(self, part: Manifest, said_at: int, decided_at: int) -> None:
        super()._owe_part(part, said_at, decided_at)
        if part.first_offset < part.cut_offset:
            return
        partition = self._job.partition_of(part.epoch, part.instance)
        self._furthest[partition] = _ANY_FLOOR
        self._empty.append((part.epoch, partition))
        while self._empty[0][0] < part.epoch - _EMPTY_AGAIN:
            self._empty.popleft()
        state = self._partitions.get(partition)
        if state is not None:
            owed = state.owed.items()
            long_ago = [
                epoch
                for epoch, each in owed
                if each.first_offset < state.floor and epoch < part.epoch - _EMPTY_AGAIN
            ]
            for epoch in long_ago:
                del state.owed[epoch]

    def _is_unfinished(self, state: DecidingPartition[DeviceWindow], part: Manifest) -> bool:
        """See `DecidingStage`; what has no record does not keep the floor below it."""
        return super()._is_unfinished(state, part) or part.first_offset == part.cut_offset

    def _decide(
        self,
        state: DecidingPartition[DeviceWindow],
        window: DeviceWindow,
        *,
        as_complete: bool = False,
    ) -> Steps[None]:
        """See `DecidingStage`; of another lane than the first: close it."""
        if window.lane == 1:
            yield from super()._decide(state, window, as_complete=as_complete)
            return
        yield from self._status_log.catch_up()
        if not (yield from self._propose(state, window, as_complete=as_complete)):
            return
        epoch = window.epoch
        del state.windows[epoch]
        if self._accepted is not None and (epoch in state.closed or epoch in state.owed):
            state.held[epoch] = window
            while len(state.held) > _HELD:
                state.held.pop(max(state.held)).close()
        else:
            window.close()
        yield from self._write_owed(state)
        yield from self._commit_floor(state)

    def _words_of(
        self, state: DecidingPartition[DeviceWindow], manifest: Manifest
    ) -> Steps[WordMultiset]:
        window = state.held.pop(manifest.epoch, None)
        if window is not None:
            return window.take_words()
        return (yield from super()._words_of(state, manifest))

    def _write(
        self, state: DecidingPartition[DeviceWindow], decision: Decision, words: WordMultiset
    ) -> Steps[None]:
        yield from super()._write(state, decision, words)
        if decision.manifest.instance > 1:
            self.counts["lanes"] += 1
