"""Whose word it is that an epoch's time has come, and who runs ahead of it.

No epoch is decided without those who are still to send it on the word of one producer:

* With a calendar, the time of an epoch has come when it has ended by the broker's clock.
* Without one, and while the broker's clock is not known, it has come when more than half of the
  producers that are expected for it have punctuated it or a later epoch. As long as fewer than
  ``shuffle.producers`` have registered, the others are expected too.

What a worker knows of punctuations is what it has read in its own partitions, late ones included,
and the producers that any manifest names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.jobs.roster import Roster
from dpstream.pipeline.stages.decision_log import PATIENCE, DecisionLog


@dataclass(frozen=True, slots=True)
class Ahead:
    """A producer that sends epochs whose time has not come.

    Attributes:
        producer: its name.
        epochs: by how many.
    """

    producer: str
    epochs: int


class Timeline:
    """The punctuations a worker has seen, and the broker's clock, as far as it knows them.

    Args:
        job: the deployed job.
        broker_time: the broker's clock in milliseconds since 1970; None while it is not known.
    """

    def __init__(self, job: DeployedJob, broker_time: Callable[[], int | None]) -> None:
        self._times = times_of(job)
        self._broker_time = broker_time
        self._latest_written: int | None = None
        self._punctuated: dict[bytes, int] = {}
        self._refused: dict[bytes, int] = {}
        self._sent: tuple[object, NDArray[np.int64]] = (None, np.zeros(0, np.int64))
        self.version = 0

    def note_written(self, written: int | None) -> None:
        """A record was written at a moment by the broker's clock, which is no earlier now."""
        if written is not None and written > (self._latest_written or -1):
            self._latest_written = written

    def note_punctuation(self, enrolment: bytes, epoch: int) -> None:
        """A producer is done with an epoch, and so with all before it."""
        if epoch > self._punctuated.get(enrolment, 0):
            self._punctuated[enrolment] = epoch
            self.version += 1

    def note_refusal(self, enrolment: bytes, epoch: int) -> None:
        """What a producer sent for an epoch was refused, since it lies too far ahead."""
        self._refused[enrolment] = max(epoch, self._refused.get(enrolment, 0))

    @property
    def now(self) -> int | None:
        """The broker's clock, as far as it is known; None where no promise can rest on it."""
        known = [t for t in (self._broker_time(), self._latest_written) if t is not None]
        return max(known, default=None)

    @property
    def by_calendar(self) -> bool:
        """Whether the calendar says when an epoch's time has come."""
        return self._times is not None and self.now is not None

    @property
    def running_epoch(self) -> int | None:
        """The epoch that is running by the calendar; None where there is none, or no clock yet."""
        now = self.now
        return None if self._times is None or now is None else self._times.epoch_of(now)

    def early(self, epoch: int, written: int | None) -> str | None:
        """Why an epoch is refused that the calendar has not begun; None if there is no reason.

        `written` is when the record was, by the broker's clock; None where its topic does not say,
        and the present moment stands in for it.
        """
        if self._times is None:
            return None
        moment = self.now if written is None else written
        return None if moment is None else self._times.refusal(epoch, moment)

    def has_ended(self, epoch: int) -> bool | None:
        """Whether an epoch has ended by the calendar; None while that does not say."""
        now = self.now
        return None if self._times is None or now is None else self._times.has_ended(epoch, now)

    def seconds_until_end(self, epoch: int) -> float | None:
        """Seconds until an epoch ends by the calendar, infinite after the year 9999; None: unknown.

        Zero for one that has ended.
        """
        now = self.now
        if self._times is None or now is None:
            return None
        end = self._times.start(epoch + 1)
        return math.inf if end is None else max(0.0, (end - now) / 1000)

    def reached(self, roster: Roster, decisions: DecisionLog) -> NDArray[np.int64]:
        """The latest epoch that each producer is known to have punctuated, as registered."""
        known = roster, len(roster), self.version
        if self._sent[0] != known:
            sent = (self._punctuated.get(producer.enrolment, 0) for producer in roster)
            self._sent = known, np.fromiter(sent, np.int64, len(roster))
        return np.maximum(self._sent[1], decisions.last_in_of(len(roster)))

    def ahead(self, roster: Roster, decisions: DecisionLog) -> Iterator[Ahead]:
        """Who is ahead of the running epoch, by the calendar or by what the majority has sent."""
        present = self._running_epoch(roster, decisions)
        refused = {
            producer.index: epoch
            for enrolment, epoch in self._refused.items()
            if epoch > present and (producer := roster.find(enrolment)) is not None
        }
        reached = np.zeros(0) if self.by_calendar else self.reached(roster, decisions)
        for index in sorted({*refused, *np.flatnonzero(reached > present + PATIENCE).tolist()}):
            if roster[index].last_epoch is None:
                latest = max(refused.get(index, 0), 0 if self.by_calendar else int(reached[index]))
                yield Ahead(roster[index].name, latest - present)

    def _running_epoch(self, roster: Roster, decisions: DecisionLog) -> int:
        now = self.now
        if self._times is not None and now is not None:
            return self._times.epoch_of(now)
        next_epoch = decisions.oldest_undecided(roster.first_epoch)
        reached = np.sort(self.reached(roster, decisions)[roster.reporting(next_epoch)])
        # More than half have reached this one.
        half = int(reached[(len(reached) - 1) // 2]) if len(reached) else 0
        return max(next_epoch - 1, half)
