"""What a publisher knows: the merged counts and the head counts of a horizon.

Everything is a function of the manifests and partials, taken in by epoch. Horizons stand alone: at
the first epoch of a new one, nothing of the one before is left. Job epochs count on for ever;
counts, head counts and estimators know the epochs of their horizon, from 1 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import OUTSIDE, Attendance, Estimate, Published
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Aggregator, LearningAggregator, ResumableAggregator
from dpstream.topics.manifests import Fate, Manifest


class Estimation:
    """Estimates of a job, from what its manifests and partials say.

    Only one horizon is known at a time, whose epochs are taken in in increasing order. Whoever
    wants one that is over takes in its epochs and no later ones.

    Attributes:
        horizon: the one being estimated, from 0 on.
        aggregator: the counts of its epochs taken in so far.
        attendance: the head counts of its epochs, numbered from 1 within the horizon.
        last_epoch: the latest epoch taken in, numbered within the horizon; 0 before the first.
        received: Whether reports of that epoch were released.
    """

    aggregator: Aggregator

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._counts_people = job.domain.measured is None
        self._begin(0)

    def take_in(self, manifest: Manifest, counts: bytes | None) -> None:
        """Merge an epoch of the present horizon, or the first one of a later horizon.

        Args:
            manifest: of the epoch.
            counts: state of the job's aggregator; None for a window without.
        """
        horizon = self._job.epochs.horizon_of(manifest.epoch)
        if horizon != self.horizon:
            self._begin(horizon)
        elif self._job.protocol_entry.per_epoch:
            self.aggregator = self._job.aggregator()
        contributors = manifest.contributors
        self.received = counts is not None
        if counts is not None:
            self.aggregator.merge(self._job.aggregator_from_bytes(counts))
        elif manifest.fate is Fate.RELEASED:
            # Nobody's reports are known, which is to say nothing about their values.
            contributors = 0
        self.last_epoch = self._job.epochs.local(manifest.epoch)
        self.attendance.set(self.last_epoch, contributors, manifest.population)

    def estimate(self) -> Published | None:
        """Estimate the epoch taken in last; None if none of its reports were released.

        What is known of earlier epochs is no estimate of this one.
        """
        if not self.received:
            return None
        estimate = self.aggregator.estimate(self.last_epoch, self.attendance)
        if isinstance(estimate, Estimate) and self._counts_people:
            value = estimate.value
            if value is not None and not 0 <= value <= estimate.population:
                return replace(estimate, flags=(*estimate.flags, OUTSIDE))
        return estimate

    def state(self) -> dict[str, Any] | None:
        """What the estimates of later epochs need of those taken in, as JSON; None: all of them.

        Between two horizons, or where epochs stand alone, they need nothing. After an epoch without
        reports there is no estimate that a state could be compared with.
        """
        last, job = self.last_epoch, self._job
        if job.protocol_entry.per_epoch or last in (0, job.epochs.count):
            return {}
        if not (self.received and isinstance(self.aggregator, ResumableAggregator)):
            return None
        # Intervals that end later begin after one of these epochs, or with the horizon.
        begins = sorted({last >> order << order for order in range(last.bit_length())})
        heads = self.attendance
        return {
            "counts": self.aggregator.state_after(last, heads),
            "attendance": [
                [each, int(heads.contributors[each]), int(heads.population[each])]
                for each in begins
            ],
        }

    @classmethod
    def resumed(cls, job: DeployedJob, epoch: int, state: Mapping[str, Any]) -> Self:
        """As if all epochs up to one had been taken in, of which `state` was made.

        Raises:
            ValueError: it is no state of the job after this epoch.
        """
        estimation = cls(job)
        estimation._begin(job.epochs.horizon_of(epoch))
        estimation.last_epoch = job.epochs.local(epoch)
        estimation.received = True
        if not state:
            if not (job.protocol_entry.per_epoch or estimation.last_epoch == job.epochs.count):
                raise ValueError(f"later epochs than {epoch} rest on those up to it")
            return estimation
        if not isinstance(estimation.aggregator, ResumableAggregator):
            raise ValueError("the protocol has no such states")
        try:
            for local, contributors, population in state["attendance"]:
                if not 1 <= local <= estimation.last_epoch:
                    raise ValueError(f"head counts of epoch {local} of the horizon")
                estimation.attendance.set(local, contributors, population)
            estimation.aggregator.resume(state["counts"], estimation.attendance)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"this is no state of an estimate: {error!r}") from None
        return estimation

    def model(self) -> NDArray[np.float64]:
        """Of a protocol that learns, the model after the epoch taken in last."""
        assert isinstance(self.aggregator, LearningAggregator)
        return self.aggregator.model(self.last_epoch)

    def _begin(self, horizon: int) -> None:
        self.horizon = horizon
        self.aggregator = self._job.aggregator()
        self.attendance = Attendance.empty(
            self._job.epochs.count, self._job.added_by_all(self._job.law)
        )
        self.last_epoch = 0
        self.received = False
