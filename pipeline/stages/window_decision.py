"""When a window is decided, and what its manifest says, whoever reports in it.

Here nothing is written, and nothing changed: all is a matter of what has arrived in the window, who
is expected, what was decided before (`decision_log`), whether its time has come (`timeline`), and
how far the worker has read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from typing import Generic, TypeVar

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_states import Event, State
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.manifests import Fate, Manifest

WindowT = TypeVar("WindowT", bound=OpenWindow)


class WindowDecision(ABC, Generic[WindowT]):
    """Says when the windows of a worker are decided, and what their manifests say.

    Args:
        job: the deployed job.
        roster: who is registered, and what an operator drains.
        log: what has been decided.
        timeline: whether the time of an epoch has come.
    """

    def __init__(
        self, job: DeployedJob, roster: Roster, log: DecisionLog, timeline: Timeline
    ) -> None:
        self._job = job
        self._roster = roster
        self._log = log
        self._timeline = timeline

    @property
    @abstractmethod
    def first_epoch(self) -> int:
        """The smallest epoch of the deployment, as long as no manifest says it."""

    @abstractmethod
    def complete(self, window: WindowT) -> bool:
        """Whether everybody who is waited for is in."""

    @abstractmethod
    def time_has_come(self, epoch: int, window: WindowT | None) -> bool:
        """Whether the grace period of an epoch may run; its window is None while there is none."""

    @abstractmethod
    def manifest(self, window: WindowT, position: int, timestamp: int) -> Manifest:
        """What is decided of a window as it is now.

        Args:
            window: whose epoch is not decided.
            position: offset up to which its partition was read: what comes later is late.
            timestamp: milliseconds since 1970.
        """

    def _abandoned(self, window: WindowT) -> bool:
        """Whether all that arrived is of those who report for the epoch no more."""
        return False

    @property
    def oldest_undecided(self) -> int:
        """The lowest epoch that exists and has no manifest."""
        return self._log.oldest_undecided(self.first_epoch)

    def too_far_ahead(self, epoch: int) -> str | None:
        """Why an epoch lies so far ahead that no window of it is opened; None if it does not."""
        oldest = self.oldest_undecided
        if epoch <= oldest + EPOCHS_AHEAD:
            return None
        return (
            f"epoch {epoch} lies more than {EPOCHS_AHEAD} epochs ahead of the oldest open one, "
            f"{oldest}"
        )

    def event(self, window: WindowT, position: int, now: float) -> Event | None:
        """What happens to an open window now; of several events the one that comes first.

        Args:
            window: that is open.
            position: offset up to which its partition was read.
            now: in seconds, by the clock that the window's moments are of.
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

    def due_silent_epochs(
        self, partition: int, position: int, windows: Container[int]
    ) -> Iterator[int]:
        """The epochs of a partition that are to be decided though no record of them has come.

        Those before a decided one, once their time has come or an operator drains them.

        Args:
            partition: of the reports.
            position: offset up to which it was read.
            windows: the epochs that are open already.
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

    def _fate(self, contributors: int) -> Fate:
        if contributors == 0:
            return Fate.EMPTY
        return Fate.TOO_SMALL if contributors < self._job.shuffle.minimum else Fate.RELEASED

    def _drained(self, epoch: int, first_offset: int | None, position: int) -> bool:
        """Whether an operator's drain closes an epoch: it began before, or a later one did.

        Estimates are published in the order of epochs: whoever drains a later one needs this too.
        """
        end = self._roster.drains.get(self._job.topics.partition_of(epoch))
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
        end = self._roster.drains.get(self._job.topics.partition_of(epoch), 0)
        return outcome is not None and outcome.first_offset < end
