"""Decide when a window closes, and compute its manifest, without side effects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from typing import Generic, TypeVar

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_states import Event, State
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.manifests import Manifest, WindowStatus

WindowT = TypeVar("WindowT", bound=OpenWindow)


class WindowDecision(ABC, Generic[WindowT]):
    def __init__(
        self, job: DeployedJob, registry: ProducerRegistry, log: DecisionLog, timeline: Timeline
    ) -> None:
        self._job = job
        self._registry = registry
        self._log = log
        self._timeline = timeline

    @property
    @abstractmethod
    def first_epoch(self) -> int:
        """First epoch of the deployment, used until a manifest states the first epoch."""

    @abstractmethod
    def complete(self, window: WindowT) -> bool: ...

    @abstractmethod
    def time_has_come(self, epoch: int, window: WindowT | None) -> bool:
        """Return whether the grace period can start; `window` is None if no window is open yet."""

    @abstractmethod
    def manifest(self, window: WindowT, position: int, timestamp: int) -> Manifest:
        """Return the manifest that decides an undecided window in its current state.

        The partition was read up to `position`; records from this offset on are late. `timestamp`
        is in milliseconds since 1970.
        """

    def _abandoned(self, window: WindowT) -> bool:
        """Return whether all records are from senders that no longer report for the epoch."""
        return False

    @property
    def oldest_undecided(self) -> int:
        return self._log.oldest_undecided(self.first_epoch)

    def too_far_ahead(self, epoch: int) -> str | None:
        oldest = self.oldest_undecided
        if epoch <= oldest + EPOCHS_AHEAD:
            return None
        return (
            f"epoch {epoch} is more than {EPOCHS_AHEAD} epochs ahead of the oldest open "
            f"epoch, {oldest}"
        )

    def event(self, window: WindowT, position: int, now: float) -> Event | None:
        """Return the event that an open window must react to now, or None.

        `position` is the offset up to which the window's partition was read. `now` is in seconds,
        by the same clock as the window's times.
        """
        if window.epoch in self._log.decided:
            return Event.SETTLED
        if self._abandoned(window):
            return Event.ABANDONED
        if self.complete(window):
            return Event.COMPLETE
        if self._drained(window.epoch, window.first_offset, position):
            return Event.DRAINED
        ends = window.grace_ends(self._job.shuffle.grace)
        if window.state is State.IN_GRACE and ends is not None and now >= ends:
            return Event.GRACE_OVER
        return None

    def due_epochs_without_records(
        self, partition: int, position: int, windows: Container[int]
    ) -> Iterator[int]:
        """Yield the epochs of a partition that must be decided without any record.

        These epochs precede a decided epoch, and their time has come or an operator drains them.
        The partition was read up to `position`; `windows` are already open.
        """
        if self._log.first_epoch is None:
            return
        decided = self._log.decided
        for epoch in decided.missing(self._log.first_epoch, decided.highest):
            if (
                self._job.topics.partition_of(epoch) == partition
                and epoch not in windows
                and (self.time_has_come(epoch, None) or self._drained(epoch, None, position))
            ):
                yield epoch

    def _window_status(self, contributors: int) -> WindowStatus:
        if contributors == 0:
            return WindowStatus.EMPTY
        if contributors < self._job.shuffle.minimum:
            return WindowStatus.SUPPRESSED
        return WindowStatus.RELEASED

    def _drained(self, epoch: int, first_offset: int | None, position: int) -> bool:
        """Return whether an operator's drain closes an epoch.

        A drain closes every epoch whose first record was written before the drain. It also closes
        all epochs before such an epoch, because estimates are published in the order of epochs.
        """
        end = self._registry.drains.get(self._job.topics.partition_of(epoch))
        if end is None or position < end:
            return False
        if first_offset is not None and first_offset < end:
            return True
        for later in self._log.decided.below(self._log.decided.highest + 1):
            if later <= epoch or self._began_before_drain(later):
                return later > epoch
        return False

    def _began_before_drain(self, epoch: int) -> bool:
        outcome = self._log.recent(epoch)
        end = self._registry.drains.get(self._job.topics.partition_of(epoch), 0)
        return outcome is not None and outcome.first_offset < end
