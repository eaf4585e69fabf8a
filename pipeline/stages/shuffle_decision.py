"""The shuffle stage's decision where producers report, who register and punctuate.

A window is decided when every expected producer is in with everything it has, when an operator
drains the job, or when its grace period is over, which begins when its time has come.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.jobs.roster import EnrolledProducer
from pipeline.stages.window_decision import WindowDecision
from pipeline.stages.windows import Window
from topics.manifests import Manifest


class ShuffleDecision(WindowDecision[Window]):
    """Waits for the producers that are on the roster."""

    @property
    def first_epoch(self) -> int:
        """The smallest registered first epoch."""
        return self._roster.first_epoch

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
        first_epoch = self._log.first_epoch
        return Manifest(
            fingerprint=self._job.fingerprint,
            deployment=self._job.deployment,
            epoch=window.epoch,
            fate=self._fate(contributors),
            first_offset=position if window.first_offset is None else window.first_offset,
            cut_offset=position,
            first_epoch=self.first_epoch if first_epoch is None else first_epoch,
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

    def _left_before_horizon(self, producer: EnrolledProducer, epoch: int) -> bool:
        """Whether a producer's devices are no part of the horizon of an epoch any more."""
        job, last = self._job, producer.last_epoch
        return last is not None and job.horizon_of(last) < job.horizon_of(epoch)
