"""Lanes of devices that report for themselves: each is closed for itself, all decided together.

A report is in the lane that its tag says, so that of one tag all are in one lane, and there the
first counts. No lane says what becomes of an epoch: that is a matter of all devices. So who owns a
lane beside the first closes it as a window is decided, when it is complete or its grace is over,
with a manifest of its own, a *closing*, that says where the lane ends and how many devices are in
it; the first closing of a lane counts. Who owns the first lane waits until that is over and all
others are closed: then it decides, of the devices of all lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from pipeline.actions import LogRecord
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.roster import Roster
from pipeline.stages.decision_log import Decision, DecisionLog
from pipeline.stages.device_decision import Collectors, DeviceDecision
from pipeline.stages.device_windows import DeviceWindow
from pipeline.stages.populations import Population
from pipeline.stages.timeline import Timeline
from pipeline.stages.window_decision import Verdict
from topics.batches import DRAWING_BYTES
from topics.frames import CodecError
from topics.manifests import Fate, Manifest, decode_manifest

# Devices draw for themselves: of them all, who stand as one producer, there is no drawing.
_NO_DRAWING: Final = bytes(DRAWING_BYTES)


class LaneClosings:
    """Which lanes are closed, from the manifest log: those of epochs that are not decided whole.

    Args:
        job: the deployed job.
        on_closing: is shown every one.
    """

    def __init__(self, job: DeployedJob, on_closing: Callable[[Decision], None]) -> None:
        self._lanes = range(2, job.lanes + 1)
        self._on_closing = on_closing
        self._logs = {
            lane: DecisionLog(job, partial(self._note, lane), lane=lane) for lane in self._lanes
        }
        self._undecided: defaultdict[int, dict[int, Decision]] = defaultdict(dict)

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the manifest log."""
        try:
            manifest = decode_manifest(record.value)
        except CodecError:
            return
        if manifest.instance in self._logs:
            self._logs[manifest.instance].take_in(manifest, record.offset)

    def log_of(self, lane: int) -> DecisionLog:
        """Which epochs have a closing of a lane, and where it ends."""
        return self._logs[lane]

    def of(self, epoch: int) -> Mapping[int, Decision]:
        """The closings of an epoch that is not decided, by lane."""
        return self._undecided.get(epoch, {})

    def open_lanes(self, epoch: int) -> Iterator[int]:
        """The lanes of an epoch that is not decided that are not closed."""
        return (lane for lane in self._lanes if lane not in self.of(epoch))

    def all_of(self, epoch: int) -> bool:
        """Whether all of these lanes are closed, of an epoch that is not decided."""
        return not any(True for _ in self.open_lanes(epoch))

    @property
    def begun(self) -> tuple[int, ...]:
        """Epochs that are not decided, and have a closing."""
        return tuple(self._undecided)

    def take(self, epoch: int) -> Mapping[int, Decision]:
        """The closings of an epoch that is decided now; they are forgotten."""
        return self._undecided.pop(epoch, {})

    def _note(self, lane: int, closing: Decision) -> None:
        self._undecided[closing.manifest.epoch][lane] = closing
        self._on_closing(closing)


class DeviceLaneDecision(DeviceDecision):
    """Closes lanes, and decides with the first one when all others are closed.

    Args:
        job: the deployed job.
        roster: what an operator drains.
        log: what has been decided.
        timeline: whether the time of an epoch has come.
        collectors: who takes reports.
        population: who has enrolled.
        closings: which lanes are closed.
    """

    def __init__(
        self,
        job: DeployedJob,
        roster: Roster,
        log: DecisionLog,
        timeline: Timeline,
        collectors: Collectors,
        population: Population,
        closings: LaneClosings,
    ) -> None:
        super().__init__(job, roster, log, timeline, collectors, population)
        self._closings = closings

    def complete(self, window: DeviceWindow) -> bool:
        """Whether no collector takes reports of the epoch; and whom the first lane waits for."""
        return super().complete(window) and self._may_close(window)

    def missing(self, window: DeviceWindow) -> Iterator[str]:
        """The collectors that still take reports; of the first lane, also lanes that are open."""
        yield from super().missing(window)
        if window.lane == 1:
            for lane in self._closings.open_lanes(window.epoch):
                yield f"lane {lane}"

    def verdict(self, window: DeviceWindow, position: int, now: float) -> Verdict:
        """See `WindowDecision.verdict`, of one lane of an epoch."""
        if not self._is_open(window.epoch, self._partition_of(window)):
            return Verdict.SETTLED
        verdict = super().verdict(window, position, now)
        if verdict is Verdict.OPEN and self._is_drained_elsewhere(window, position):
            verdict = Verdict.OVERDUE
        return verdict if verdict is Verdict.SETTLED or self._may_close(window) else Verdict.OPEN

    def due_silent_epochs(
        self, partition: int, position: int, windows: Container[int]
    ) -> Iterator[int]:
        """See `DeviceDecision`; also epochs that an operator's drain has closed in other lanes."""
        yield from super().due_silent_epochs(partition, position, windows)
        end = self._roster.drains.get(partition)
        if end is None or position < end:
            return
        for epoch in self._closings.begun:
            if (
                epoch not in windows
                and self._is_open(epoch, partition)
                and not self.time_has_come(epoch, None)
            ):
                yield epoch

    def manifest(self, window: DeviceWindow, position: int, timestamp: int) -> Manifest:
        """The decision, with the devices of all lanes; of another lane than the first its closing.

        What a closing says of fate and population is of that lane alone, and decides nothing.
        """
        own = super().manifest(window, position, timestamp)
        contributors = own.contributors
        if window.lane > 1:
            return replace(
                own,
                instance=window.lane,
                fate=Fate.RELEASED if contributors else Fate.EMPTY,
                population=contributors,
                populations=(contributors,) if contributors else (),
                drawings=(_NO_DRAWING,) if contributors else (),
            )
        closings = self._closings.of(window.epoch).values()
        contributors += sum(each.manifest.contributors for each in closings)
        population = max(own.population, contributors)
        return replace(
            own,
            fate=self._fate(contributors),
            producers=(contributors > 0,),
            populations=(population,) if contributors else (),
            contributors=contributors,
            population=population,
        )

    def _partition_of(self, window: DeviceWindow) -> int:
        return self._job.partition_of(window.epoch, window.lane)

    def _is_open(self, epoch: int, partition: int) -> bool:
        lane = self._job.part_in(epoch, partition)
        if lane is None or epoch in self._log.decided:
            return False
        return lane == 1 or epoch not in self._closings.log_of(lane).decided

    def _may_close(self, window: DeviceWindow) -> bool:
        """Whether nothing but the lane itself is waited for."""
        return window.lane > 1 or self._closings.all_of(window.epoch)

    def _is_drained_elsewhere(self, window: DeviceWindow, position: int) -> bool:
        """Whether an operator's drain has closed another lane of an epoch that goes on."""
        end = self._roster.drains.get(self._partition_of(window))
        return (
            end is not None
            and position >= end
            and window.closing_end is None
            and bool(self._closings.of(window.epoch))
            and not self.time_has_come(window.epoch, window)
        )
