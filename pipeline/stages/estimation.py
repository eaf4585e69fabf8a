"""State of a publisher: the merged counts and participation of a horizon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from dpstream.aggregators.estimate import OUTSIDE, Estimate, Participation, Published
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Aggregator, ResumableAggregator
from dpstream.topics.manifests import Manifest, WindowStatus


class Estimation:
    """Compute a job's estimates from its manifests and partials, one horizon at a time.

    `participation` and `last_epoch` are numbered from 1 within the `horizon`; `last_epoch` is 0
    before the first. `received` is True if reports of `last_epoch` were released.
    """

    aggregator: Aggregator

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._begin(0)

    def take_in(self, manifest: Manifest, counts: bytes | None) -> None:
        """Merge an epoch of this or a later horizon; `counts` is None without a release."""
        horizon = self._job.epochs.horizon_of(manifest.epoch)
        if horizon != self.horizon:
            self._begin(horizon)
        elif self._job.protocol_entry.per_epoch:
            self.aggregator = self._job.aggregator()
        contributors = manifest.contributors
        self.received = counts is not None
        if counts is not None:
            self.aggregator.merge(self._job.aggregator_from_bytes(counts))
        elif manifest.window_status is WindowStatus.RELEASED:
            # Users with unknown reports count as absent, which implies nothing about their values.
            contributors = 0
        self.last_epoch = self._job.epochs.local(manifest.epoch)
        self.participation.set(self.last_epoch, contributors, manifest.population)

    def estimate(self) -> Published | None:
        """Estimate the epoch added last, or return None if none of its reports were released."""
        if not self.received:
            return None
        estimate = self.aggregator.estimate(self.last_epoch, self.participation)
        if isinstance(estimate, Estimate):
            value = estimate.value
            if value is not None and not 0 <= value <= estimate.population:
                return replace(estimate, flags=(*estimate.flags, OUTSIDE))
        return estimate

    def state(self) -> dict[str, Any] | None:
        """Return the state, as JSON, for estimating later epochs; None if these need all epochs.

        It is also None after an epoch without reports, which has no estimate to check the state
        against.
        """
        last, job = self.last_epoch, self._job
        if job.protocol_entry.per_epoch or last in (0, job.epochs.count):
            return {}
        if not (self.received and isinstance(self.aggregator, ResumableAggregator)):
            return None
        # Intervals that end later start after one of these epochs, or with the horizon.
        begins = sorted({last >> order << order for order in range(last.bit_length())})
        heads = self.participation
        return {
            "counts": self.aggregator.state_after(last, heads),
            "participation": [
                [each, int(heads.contributors[each]), int(heads.population[each])]
                for each in begins
            ],
        }

    @classmethod
    def resumed(cls, job: DeployedJob, epoch: int, state: Mapping[str, Any]) -> Self:
        estimation = cls(job)
        estimation._begin(job.epochs.horizon_of(epoch))
        estimation.last_epoch = job.epochs.local(epoch)
        estimation.received = True
        if not state:
            if not (job.protocol_entry.per_epoch or estimation.last_epoch == job.epochs.count):
                raise ValueError(f"state is empty; estimates after epoch {epoch} need a state")
            return estimation
        if not isinstance(estimation.aggregator, ResumableAggregator):
            raise ValueError("state: this protocol cannot resume an estimate from a state")
        try:
            for local, contributors, population in state["participation"]:
                if not 1 <= local <= estimation.last_epoch:
                    raise ValueError(f"epoch: got {local}; expected 1 to {estimation.last_epoch}")
                estimation.participation.set(local, contributors, population)
            estimation.aggregator.resume(state["counts"], estimation.participation)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"state of an estimate is malformed: {error!r}") from None
        return estimation

    def _begin(self, horizon: int) -> None:
        self.horizon = horizon
        self.aggregator = self._job.aggregator()
        self.participation = Participation.empty(
            self._job.epochs.count, self._job.added_by_all(self._job.law)
        )
        self.last_epoch = 0
        self.received = False
