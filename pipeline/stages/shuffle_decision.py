"""The shuffle stage's decision: when a window is decided, and what its manifest says.

A window is decided when every expected producer is in with everything it has, when an operator
drains the job, or when its grace period is over, which begins when its time has come (`timeline`).
Here nothing is written, and nothing changed: all is a matter of what has arrived in the window, who
is registered (`roster`), what was decided before (`decision_log`), and how far the worker has read.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from enum import Enum, auto

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import EPOCHS_AHEAD
from pipeline.jobs.roster import EnrolledProducer, Roster
from pipeline.stages.decision_log import DecisionLog
from pipeline.stages.timeline import Timeline
from pipeline.stages.windows import Window
from topics.manifests import Fate, Manifest


class Verdict(Enum):
    """What is to become of an open window; what stands first here goes first."""

    SETTLED = auto()
    """A manifest of its epoch is in the log: it is carried out."""

    ABANDONED = auto()
    """All that arrived is of producers that report for the epoch no more: it is forgotten."""

    COMPLETE = auto()
    """Every expected producer is in: it is decided."""

    DRAINED = auto()
    """An operator's drain closes it: it is decided."""

    OVERDUE = auto()
    """Its grace is over: it is decided once everything is read that is in the log by now."""

    OPEN = auto()
    """It goes on waiting."""


class ShuffleDecision:
    """Says when the windows of a worker are decided, and what their manifests say.

    Args:
        job: the deployed job.
        roster: who is registered.
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
    def oldest_undecided(self) -> int:
        """The lowest epoch that exists and has no manifest."""
        return self._log.oldest_undecided(self._roster.first_epoch)

    def too_far_ahead(self, epoch: int) -> str | None:
        """Why an epoch lies so far ahead that no window of it is opened; None if it does not."""
        oldest = self.oldest_undecided
        if epoch <= oldest + EPOCHS_AHEAD:
            return None
        return (
            f"epoch {epoch} lies more than {EPOCHS_AHEAD} epochs ahead of the oldest open one, "
            f"{oldest}"
        )

    def verdict(self, window: Window, position: int, now: float) -> Verdict:
        """What is to become of a window.

        Args:
            window: that is open.
            position: offset up to which its partition was read.
            now: in seconds, by the clock that the window's moments are of.
        """
        if window.epoch in self._log.decided:
            return Verdict.SETTLED
        if self._abandoned(window):
            return Verdict.ABANDONED
        if self.complete(window):
            return Verdict.COMPLETE
        if self._drained(window.epoch, window.first_offset, position):
            return Verdict.DRAINED
        ends = window.grace_ends(self._job.shuffle.grace)
        if window.closing_end is None and ends is not None and now >= ends:
            return Verdict.OVERDUE
        return Verdict.OPEN

    def missing(self, window: Window) -> Iterator[EnrolledProducer]:
        """Who is expected and not in."""
        for producer in self._expected(window.epoch, window):
            if window.complete(producer.enrolment) is None:
                yield producer

    def complete(self, window: Window) -> bool:
        """Whether enough producers have registered, and all that are expected are in."""
        if len(self._roster) < self._job.shuffle.producers:
            return False
        somebody = False
        for producer in self._expected(window.epoch, window):
            if window.complete(producer.enrolment) is None:
                return False
            somebody = True
        return somebody

    def time_has_come(self, epoch: int, window: Window | None) -> bool:
        """Whether the grace period of an epoch may run; its window is None while there is none."""
        expected = self._expected(epoch, window)
        unregistered = max(0, self._job.shuffle.producers - len(self._roster))
        return self._timeline.has_come(epoch, expected, unregistered, self._log)

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
                self._job.partition_of(epoch) == partition
                and epoch not in windows
                and (self.time_has_come(epoch, None) or self._drained(epoch, None, position))
            ):
                yield epoch

    def manifest(self, window: Window, position: int, timestamp: int) -> Manifest:
        """What is decided of a window as it is now.

        Args:
            window: whose epoch is not decided.
            position: offset up to which its partition was read: what comes later is late.
            timestamp: milliseconds since 1970.
        """
        inside: list[bool] = []
        populations: list[int] = []
        drawings: list[bytes] = []
        contributors = population = 0
        for producer in self._roster:
            punctuation = window.complete(producer.enrolment)
            inside.append(punctuation is not None)
            if punctuation is not None:
                contributors += punctuation.contributors
                populations.append(punctuation.population)
                drawings += [punctuation.drawing] if punctuation.drawing is not None else []
                population += punctuation.population
            elif not self._left_before_horizon(producer, window.epoch):
                population += self._log.population(producer.index)
        if contributors == 0:
            fate = Fate.EMPTY
        elif contributors < self._job.shuffle.minimum:
            fate = Fate.TOO_SMALL
        else:
            fate = Fate.RELEASED
        first_epoch = self._log.first_epoch
        return Manifest(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=window.epoch,
            fate=fate,
            first_offset=position if window.first_offset is None else window.first_offset,
            cut_offset=position,
            first_epoch=self._roster.first_epoch if first_epoch is None else first_epoch,
            producers=tuple(inside),
            populations=tuple(populations),
            contributors=contributors,
            population=population,
            timestamp=timestamp,
            drawings=tuple(drawings) if self._job.instances > 1 else (),
        )

    def _expected(self, epoch: int, window: Window | None) -> Iterator[EnrolledProducer]:
        """Who must be in before the window of an epoch closes by completeness."""
        for producer in self._roster:
            if producer.reports_at(epoch) and (
                (window is not None and window.holds(producer.enrolment))
                or not self._log.missed(producer.index, producer.first_epoch, epoch)
            ):
                yield producer

    def _abandoned(self, window: Window) -> bool:
        """Whether all that arrived is of producers that report for the epoch no more.

        An operator has retired them, and what they sent for it before is refused from now on.
        """
        holders = map(self._roster.find, window.contributions)
        return window.first_offset is not None and not any(
            producer is not None and producer.reports_at(window.epoch) for producer in holders
        )

    def _drained(self, epoch: int, first_offset: int | None, position: int) -> bool:
        """Whether an operator's drain closes an epoch: it began before, or a later one did.

        Estimates are published in the order of epochs: whoever drains a later one needs this too.
        """
        end = self._roster.drains.get(self._job.partition_of(epoch))
        if end is None or position < end:
            return False
        if first_offset is not None and first_offset < end:
            return True
        for later in self._log.decided.below(self._log.decided.highest + 1):
            if later <= epoch or self._began_before_drain(later):
                return later > epoch
        return False

    def _began_before_drain(self, epoch: int) -> bool:
        decision = self._log.recent(epoch)
        end = self._roster.drains.get(self._job.partition_of(epoch), 0)
        return decision is not None and decision.manifest.first_offset < end

    def _left_before_horizon(self, producer: EnrolledProducer, epoch: int) -> bool:
        """Whether a producer's devices are no part of the horizon of an epoch any more."""
        job, last = self._job, producer.last_epoch
        return last is not None and job.horizon_of(last) < job.horizon_of(epoch)
