"""Interface of the senders of a window: producers, or devices that report themselves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.multisets import MessageMultiset
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
    """Records of one kind of sender, and the state of these senders."""

    @property
    def seconds_of_a_time_check(self) -> float:
        """Minimum seconds between checks of windows' time, which bounds their cost."""
        return 0.0

    @property
    def known(self) -> object:
        """State that changes with everything the source knows about epochs' times."""
        return None

    @abstractmethod
    def begin(
        self, registry: ProducerRegistry, log: DecisionLog, timeline: Timeline
    ) -> WindowDecision[WindowT]:
        """Reset, and return the decision rules of windows."""

    @abstractmethod
    def admit(self, partition: int, value: bytes) -> RecordT | Rejection:
        """Return a record of this job and partition, or the reason to reject it."""

    @abstractmethod
    def new_window(
        self, epoch: int, now: float, multiset: Callable[[], MessageMultiset]
    ) -> WindowT:
        """Open an empty window."""

    @abstractmethod
    def windows_again(
        self, registry: ProducerRegistry, multiset: Callable[[], MessageMultiset]
    ) -> WindowsAgain:
        """Return a collector of decided windows from the topic."""

    @abstractmethod
    def add(self, window: WindowT, record: RecordT) -> Mapping[str, int]:
        """Add a record to its window, and return its contribution to the heartbeat's counters.

        Raises `PunctuationError` if it contradicts earlier records of its sender.
        """

    @abstractmethod
    def may_complete(self, window: WindowT, record: RecordT) -> bool:
        """Return whether this record may have completed the window."""

    @abstractmethod
    def size(self, record: RecordT) -> int:
        """Return the number of reports of a record that a heartbeat may publish."""

    @abstractmethod
    def arrived(self, window: WindowT) -> Mapping[str, int]:
        """Return the heartbeat's numbers for an open window."""

    @abstractmethod
    def awaited(self, window: WindowT) -> Iterator[str]:
        """Yield the names of the senders a window waits for."""

    def knows_sender(self, record: RecordT) -> bool:
        """Return whether the sender is known, or need not be."""
        return True

    def rejection(self, record: RecordT) -> Rejection | None:
        """Return why the sender cannot report for this epoch, or None if it can."""
        return None

    def ahead_of_time(self, record: RecordT, problem: str) -> Rejection:
        return Rejection(Reason.EPOCH, problem)

    def note(self, record: RecordT) -> None:
        """Update the sender's progress from a record."""

    def look(self, now: float) -> Steps[None]:
        """Refresh the known senders periodically."""
        yield from ()

    def before_decision(self) -> Steps[None]:
        """Read the known senders to the end, before a window is decided."""
        yield from ()

    def counts(self, window: WindowT) -> Mapping[str, int]:
        return {}

    def idle_seconds(self) -> float | None:
        """Return the seconds until a decision is due without a record; None if one is due now."""
        return math.inf
