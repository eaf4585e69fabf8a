"""Close windows in producer jobs, whose producers register and punctuate.

A window is decided when all records of every expected producer are in it, or when an operator
drains the job. Otherwise, the window is decided after its grace period. The grace period starts
when the epoch has ended (see `timeline`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.producer_registry import EnrolledProducer, ProducerRegistry
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.pipeline.stages.timeline import Timeline
from dpstream.pipeline.stages.window_decision import WindowDecision
from dpstream.pipeline.stages.windows import Window
from dpstream.topics.manifests import Manifest


@dataclass(slots=True)
class _Awaited:
    """Producers that a window still waits for; a record removes only the producer it completes.

    `standing` are the producers expected even if none of their records has arrived, computed from
    the state `known`; `missing` counts those not in the window. `inside` includes the first `taken`
    elements of `Window.inside`. Arrays are in order of registration.
    """

    inside: NDArray[np.bool_]
    taken: int = 0
    known: object = None
    standing: NDArray[np.bool_] | None = None
    missing: int = 0


class ShuffleDecision(WindowDecision[Window]):
    """Decide windows by the registered producers.

    A producer is expected if it reports for the epoch and was in one of the last windows, or if any
    of its records has arrived. The number of missing producers is computed again only if the
    registry or the last decisions change.
    """

    def __init__(
        self, job: DeployedJob, registry: ProducerRegistry, log: DecisionLog, timeline: Timeline
    ) -> None:
        super().__init__(job, registry, log, timeline)
        self._names_drawings = job.shuffle.instances > 1
        # Otherwise, estimates of a horizon build on the reports of all its epochs.
        leave_at_once = job.protocol_entry.sampled is not None
        self._left = self._left_before if leave_at_once else self._left_before_horizon
        self._windows: WeakKeyDictionary[Window, _Awaited] = WeakKeyDictionary()

    @property
    def first_epoch(self) -> int:
        return self._registry.first_epoch

    def missing(self, window: Window) -> Iterator[EnrolledProducer]:
        expected = self._expected(window.epoch, window) & ~self._awaited(window).inside
        for index in np.flatnonzero(expected).tolist():
            yield self._registry[index]

    def complete(self, window: Window) -> bool:
        if len(self._registry) < self._job.shuffle.producers:
            return False
        if any(True for _ in self._unfinished(window)):
            return False
        awaited = self._awaited(window)
        if awaited.missing:
            return False
        return bool((awaited.inside & self._registry.reporting(window.epoch)).any())

    def time_has_come(self, epoch: int, window: Window | None) -> bool:
        ended = self._timeline.has_ended(epoch)
        if ended is not None:
            return ended
        reached = self._timeline.reached(self._registry, self._log)[self._expected(epoch, window)]
        through = int(np.count_nonzero(reached >= epoch))
        waiting = len(reached) - through + max(0, self._job.shuffle.producers - len(self._registry))
        return through > waiting or not (through or waiting)

    def manifest(self, window: Window, position: int, timestamp: int) -> Manifest:
        inside: list[bool] = []
        populations: list[int] = []
        drawings: list[bytes] = []
        contributors = population = 0
        for producer in self._registry:
            punctuation = window.complete(producer.enrollment)
            inside.append(punctuation is not None)
            if punctuation is not None:
                contributors += punctuation.contributors
                populations.append(punctuation.population)
                drawings.append(punctuation.drawing)
                population += punctuation.population
            elif not self._left(producer, window.epoch):
                population += self._log.population(producer.index)
        first_epoch = self._log.first_epoch
        return Manifest(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=window.epoch,
            window_status=self._window_status(contributors),
            first_offset=position if window.first_offset is None else window.first_offset,
            cut_offset=position,
            first_epoch=self.first_epoch if first_epoch is None else first_epoch,
            producers=tuple(inside),
            populations=tuple(populations),
            contributors=contributors,
            population=population,
            timestamp=timestamp,
            drawings=tuple(drawings) if self._names_drawings else (),
        )

    def _expected(self, epoch: int, window: Window | None) -> NDArray[np.bool_]:
        if window is None:
            return self._standing(epoch)
        awaited = self._awaited(window)
        assert awaited.standing is not None
        expected = awaited.standing | (awaited.inside & self._registry.reporting(epoch))
        expected[[producer.index for producer in self._unfinished(window)]] = True
        return expected

    def _standing(self, epoch: int) -> NDArray[np.bool_]:
        absent = self._log.absent(epoch, self._registry.first_epochs)
        return self._registry.reporting(epoch) & ~absent

    def _unfinished(self, window: Window) -> Iterator[EnrolledProducer]:
        for producer in map(self._registry.find, window.unfinished):
            if producer is not None and producer.reports_at(window.epoch):
                yield producer

    def _awaited(self, window: Window) -> _Awaited:
        awaited = self._windows.get(window)
        if awaited is None or len(awaited.inside) != len(self._registry):
            awaited = self._windows[window] = _Awaited(np.zeros(len(self._registry), np.bool_))
        for producer in map(self._registry.find, window.inside[awaited.taken :]):
            if producer is not None:
                awaited.inside[producer.index] = True
                if awaited.standing is not None and awaited.standing[producer.index]:
                    awaited.missing -= 1
        awaited.taken = len(window.inside)
        known = self._registry.version, self._log.latest_before(window.epoch)
        if awaited.standing is None or awaited.known != known:
            awaited.standing = self._standing(window.epoch)
            awaited.missing = int(np.count_nonzero(awaited.standing & ~awaited.inside))
            awaited.known = known
        return awaited

    def _abandoned(self, window: Window) -> bool:
        holders = map(self._registry.find, window.contributions)
        return window.first_offset is not None and not any(
            producer is not None and producer.reports_at(window.epoch) for producer in holders
        )

    def _left_before(self, producer: EnrolledProducer, epoch: int) -> bool:
        return producer.last_epoch is not None and producer.last_epoch < epoch

    def _left_before_horizon(self, producer: EnrolledProducer, epoch: int) -> bool:
        job, last = self._job, producer.last_epoch
        return last is not None and job.epochs.horizon_of(last) < job.epochs.horizon_of(epoch)
