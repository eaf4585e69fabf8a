"""Who reports: what the shuffle stage leaves to producers and to devices that report themselves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.stages.admission import Refusal
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_decision import WindowDecision
from dpstream.pipeline.stages.window_writer import WindowsAgain
from dpstream.pipeline.stages.windows import OpenWindow
from dpstream.topics.records import Reason


class _OfAnEpoch(Protocol):
    @property
    def epoch(self) -> int: ...


WindowT = TypeVar("WindowT", bound=OpenWindow)
RecordT = TypeVar("RecordT", bound=_OfAnEpoch)


class WindowSource(ABC, Generic[WindowT, RecordT]):
    """The records of one kind of sender, and what is known of the senders."""

    @property
    def seconds_of_a_time_check(self) -> float:
        """How long looking whether windows' time has come takes, at most a tenth of the time."""
        return 0.0

    @property
    def known(self) -> object:
        """Changes with all that the source knows of whether an epoch's time has come."""
        return None

    @abstractmethod
    def begin(
        self, roster: Roster, log: DecisionLog, timeline: Timeline
    ) -> WindowDecision[WindowT]:
        """Know nothing of what was decided; returns what says when windows are decided."""

    @abstractmethod
    def admit(self, partition: int, value: bytes) -> RecordT | Refusal:
        """Read a record of this job and partition, or return the reason to refuse it."""

    @abstractmethod
    def new_window(self, epoch: int, now: float, multiset: Callable[[], WordMultiset]) -> WindowT:
        """Open a window of which nothing has arrived."""

    @abstractmethod
    def windows_again(self, roster: Roster, multiset: Callable[[], WordMultiset]) -> WindowsAgain:
        """Return what collects windows that are decided from what the topic holds."""

    @abstractmethod
    def add(self, window: WindowT, record: RecordT) -> Mapping[str, int]:
        """Add a record to its window; returns what a heartbeat counts of it.

        Raises:
            PunctuationError: it contradicts what its sender sent before.
        """

    @abstractmethod
    def may_complete(self, window: WindowT, record: RecordT) -> bool:
        """Whether the window may be complete with this record."""

    @abstractmethod
    def size(self, record: RecordT) -> int:
        """Number of reports of a record that a heartbeat may tell."""

    @abstractmethod
    def arrived(self, window: WindowT) -> Mapping[str, int]:
        """What a heartbeat tells of an open window."""

    @abstractmethod
    def awaited(self, window: WindowT) -> Iterator[str]:
        """Names of those whom a window waits for."""

    def knows_sender(self, record: RecordT) -> bool:
        """Whether the sender is known, or need not be."""
        return True

    def refusal(self, record: RecordT) -> Refusal | None:
        """Why the sender cannot report for this epoch; None where it can."""
        return None

    def ahead_of_time(self, record: RecordT, problem: str) -> Refusal:
        """Refuse a record of an epoch whose time has not come."""
        return Refusal(Reason.EPOCH, problem)

    def note(self, record: RecordT) -> None:
        """Learn from a record how far its sender is."""

    def look(self, now: float) -> Steps[None]:
        """See from time to time who there is."""
        yield from ()

    def before_decision(self) -> Steps[None]:
        """Read to its end who there is, before a window is decided."""
        yield from ()

    def counts(self, window: WindowT) -> Mapping[str, int]:
        """What a heartbeat counts of a window that is decided."""
        return {}

    def seconds_of_rest(self) -> float | None:
        """For how long nothing has to be decided without a record; None: something has to."""
        return math.inf
