"""Decide when an epoch's time has come, and find producers that are ahead of time.

A single producer cannot end an epoch that other producers have not sent yet:

* With a calendar, the time of an epoch has come when it has ended by the broker's clock.
* Without a calendar, or while the broker's clock is unknown, a majority decides. The time has come
  when more than half of the producers expected for the epoch have punctuated this or a later epoch.
  Producers that have not registered yet are expected, too, up to ``shuffle.producers`` in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.pipeline.stages.decision_log import MAX_MISSED_EPOCHS, DecisionLog


@dataclass(frozen=True, slots=True)
class Ahead:
    """Producer that sends epochs before their time, and how many epochs it is ahead."""

    producer: str
    epochs: int


class Timeline:
    """Punctuations read by a worker, and the broker's clock as far as it is known."""

    def __init__(self, job: DeployedJob, broker_time: Callable[[], int | None]) -> None:
        self._times = times_of(job)
        self._broker_time = broker_time
        self._latest_written: int | None = None
        self._punctuated: dict[bytes, int] = {}
        self._rejected: dict[bytes, int] = {}
        self._sent: tuple[object, NDArray[np.int64]] = (None, np.zeros(0, np.int64))
        self.version = 0

    def note_written(self, written: int | None) -> None:
        """Advance the broker's clock, as known so far, to the time when a record was written."""
        if written is not None and written > (self._latest_written or -1):
            self._latest_written = written

    def note_punctuation(self, enrollment: bytes, epoch: int) -> None:
        if epoch > self._punctuated.get(enrollment, 0):
            self._punctuated[enrollment] = epoch
            self.version += 1

    def note_rejection(self, enrollment: bytes, epoch: int) -> None:
        self._rejected[enrollment] = max(epoch, self._rejected.get(enrollment, 0))

    @property
    def now(self) -> int | None:
        """Latest known time of the broker's clock, in milliseconds since 1970; None if unknown."""
        known = [t for t in (self._broker_time(), self._latest_written) if t is not None]
        return max(known, default=None)

    @property
    def by_calendar(self) -> bool:
        return self._times is not None and self.now is not None

    @property
    def running_epoch(self) -> int | None:
        now = self.now
        return None if self._times is None or now is None else self._times.epoch_of(now)

    def early(self, epoch: int, written: int | None) -> str | None:
        """Return why a record is too early by the calendar, or None if it is not too early.

        `written` is the record's time by the broker's clock; None means the current time.
        """
        if self._times is None:
            return None
        moment = self.now if written is None else written
        return None if moment is None else self._times.rejection(epoch, moment)

    def has_ended(self, epoch: int) -> bool | None:
        now = self.now
        return None if self._times is None or now is None else self._times.has_ended(epoch, now)

    def seconds_until_end(self, epoch: int) -> float | None:
        """Return the seconds until an epoch ends by the calendar, or None if unknown.

        Zero after the epoch's end; infinite if the end is after the year 9999.
        """
        now = self.now
        if self._times is None or now is None:
            return None
        end = self._times.start(epoch + 1)
        return math.inf if end is None else max(0.0, (end - now) / 1000)

    def reached(self, registry: ProducerRegistry, decisions: DecisionLog) -> NDArray[np.int64]:
        """Return each producer's latest known punctuated epoch, in order of registration."""
        known = registry, len(registry), self.version
        if self._sent[0] != known:
            sent = (self._punctuated.get(producer.enrollment, 0) for producer in registry)
            self._sent = known, np.fromiter(sent, np.int64, len(registry))
        return np.maximum(self._sent[1], decisions.last_in_of(len(registry)))

    def ahead(self, registry: ProducerRegistry, decisions: DecisionLog) -> Iterator[Ahead]:
        present = self._running_epoch(registry, decisions)
        rejected = {
            producer.index: epoch
            for enrollment, epoch in self._rejected.items()
            if epoch > present and (producer := registry.find(enrollment)) is not None
        }
        reached = np.zeros(0) if self.by_calendar else self.reached(registry, decisions)
        for index in sorted(
            {*rejected, *np.flatnonzero(reached > present + MAX_MISSED_EPOCHS).tolist()}
        ):
            if registry[index].last_epoch is None:
                latest = max(rejected.get(index, 0), 0 if self.by_calendar else int(reached[index]))
                yield Ahead(registry[index].name, latest - present)

    def _running_epoch(self, registry: ProducerRegistry, decisions: DecisionLog) -> int:
        now = self.now
        if self._times is not None and now is not None:
            return self._times.epoch_of(now)
        next_epoch = decisions.oldest_undecided(registry.first_epoch)
        reached = np.sort(self.reached(registry, decisions)[registry.reporting(next_epoch)])
        # More than half of the producers have reached this epoch.
        half = int(reached[(len(reached) - 1) // 2]) if len(reached) else 0
        return max(next_epoch - 1, half)
