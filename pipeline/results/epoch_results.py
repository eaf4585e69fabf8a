"""What became of every epoch of a deployment: the integers it rests on, and what was published."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.aggregators.estimate import Published
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.epoch_log import DecidedEpoch
from dpstream.topics.manifests import Fate


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The final word on an epoch.

    Attributes:
        epoch: of the job.
        fate: what became of its window.
        contributors: devices in the window.
        population: devices enrolled.
        counts: `Aggregator.to_bytes` of its own reports; None for a window not released.
        estimate: as published.
    """

    epoch: int
    fate: Fate
    contributors: int
    population: int
    counts: bytes | None
    estimate: Published | None


def result_of(job: DeployedJob, epoch: DecidedEpoch) -> EpochResult:
    """The result of a published epoch."""
    published, payload = epoch.estimate, epoch.counts
    assert published is not None
    counts = None if payload is None else job.aggregator_from_bytes(payload).to_bytes()
    return EpochResult(
        epoch=published.epoch,
        fate=published.fate,
        contributors=published.contributors,
        population=published.population,
        counts=counts,
        estimate=published.estimate,
    )
