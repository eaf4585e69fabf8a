"""What rules of alarm need to know of a job, and does not change while its workers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from dpstream.pipeline.jobs.deployed_job import DeployedJob


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The measures by which a job's metrics are judged.

    Attributes:
        grace_seconds: how long a window waits for producers that are late.
        minimum: the fewest devices that a window is released with.
        epsilon: the privacy loss that the guarantee states.
        delta: the same.
        unit: what they are spent on, see `dpstream.randomizers.guarantee.Guarantee`.
        epoch_seconds: how long the first epoch lasts; None for epochs that are not placed in time.
    """

    grace_seconds: float
    minimum: int
    epsilon: float
    delta: float
    unit: str
    epoch_seconds: float | None = None

    @classmethod
    def of(cls, job: DeployedJob) -> Self:
        """Those of a deployed job."""
        guarantee = job.guarantee
        epoch_seconds = None
        if (calendar := job.epochs.calendar) is not None:
            epoch_seconds = (calendar.start_of(2) - calendar.start_of(1)).total_seconds()
        return cls(
            job.shuffle.grace,
            job.shuffle.minimum,
            guarantee.epsilon,
            guarantee.delta,
            guarantee.unit,
            epoch_seconds,
        )
