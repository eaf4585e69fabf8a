"""Interface to the senders of a window: producers, or devices that send through collectors."""

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
    @property
    def seconds_of_a_time_check(self) -> float:
        """Minimum seconds between two checks of whether the time of windows has come."""
        return 0.0

    @property
    def known(self) -> object:
        """Value that changes whenever other epochs might have ended."""
        return None

    @abstractmethod
    def begin(
        self, registry: ProducerRegistry, log: DecisionLog, timeline: Timeline
    ) -> WindowDecision[WindowT]:
        """Reset the source, and return the decision rules for its windows."""

    @abstractmethod
    def admit(self, partition: int, value: bytes) -> RecordT | Rejection: ...

    @abstractmethod
    def new_window(
        self, epoch: int, now: float, multiset: Callable[[], MessageMultiset]
    ) -> WindowT: ...

    @abstractmethod
    def windows_again(
        self, registry: ProducerRegistry, multiset: Callable[[], MessageMultiset]
    ) -> WindowsAgain: ...

    @abstractmethod
    def add(self, window: WindowT, record: RecordT) -> Mapping[str, int]:
        """Add a record, and return the increments of the heartbeat's counters."""

    @abstractmethod
    def may_complete(self, window: WindowT, record: RecordT) -> bool: ...

    @abstractmethod
    def size(self, record: RecordT) -> int:
        """Return the public size of a record, by which heartbeats count reports."""

    @abstractmethod
    def arrived(self, window: WindowT) -> Mapping[str, int]:
        """Return the counts of an open window for the heartbeat, by name."""

    @abstractmethod
    def awaited(self, window: WindowT) -> Iterator[str]: ...

    def knows_sender(self, record: RecordT) -> bool:
        return True

    def rejection(self, record: RecordT) -> Rejection | None:
        return None

    def ahead_of_time(self, record: RecordT, problem: str) -> Rejection:
        return Rejection(Reason.EPOCH, problem)

    def note(self, record: RecordT) -> None: ...

    def look(self, now: float) -> Steps[None]:
        yield from ()

    def before_decision(self) -> Steps[None]:
        """Read the logs of senders to their end, before a window is decided."""
        yield from ()

    def counts(self, window: WindowT) -> Mapping[str, int]:
        return {}

    def idle_seconds(self) -> float | None:
        """Return the seconds until a decision is due without a record; None if one is due now."""
        return math.inf
