"""Constants of a job that alert rules need, and other heartbeat contents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from dpstream.pipeline.jobs.deployed_job import DeployedJob


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Constants that alert rules compare with a job's metrics.

    A window waits `grace_seconds` for late producers, and is released with at least `minimum`
    devices. `epsilon` and `delta` are the privacy loss that the guarantee states, per `unit`.
    `epoch_seconds` is the length of the first epoch; None without a calendar.
    """

    grace_seconds: float
    minimum: int
    epsilon: float
    delta: float
    unit: str
    epoch_seconds: float | None = None

    @classmethod
    def of(cls, job: DeployedJob) -> Self:
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


def heartbeat(
    stage: Mapping[str, object],
    positions: Mapping[int, int],
    ends: Mapping[int, int],
    read: int,
    seconds: float,
) -> dict[str, object]:
    """Return the heartbeat of a worker that is not idle.

    Record counts are omitted if devices rely on the stage to hide how many messages they send,
    because almost every record is a batch of messages. `read` records were read in the last
    `seconds`.

    >>> heartbeat({}, {0: 7}, {0: 9, 1: 4}, read=10, seconds=2.0)
    {'partitions': [0], 'busy': True, 'lag': 2, 'records_per_second': 5.0}
    """
    words = {**stage, "partitions": sorted(positions), "busy": read > 0}
    if stage.get("hides_messages"):
        return words
    lag = sum(max(0, ends.get(partition, 0) - at) for partition, at in positions.items())
    return {**words, "lag": lag, "records_per_second": round(read / seconds, 1)}


@dataclass(frozen=True, slots=True)
class PublishedNumber:
    """An estimate for one epoch, and its change since the previous epoch.

    `labels` distinguish the job's numbers: by item, or by measure and attributes. `interval` is the
    95 % confidence interval; None if no coverage is claimed. `change_interval` is that of `change`;
    both are None if unknown.
    """

    labels: Mapping[str, str]
    value: float
    interval: tuple[float, float] | None = None
    change: float | None = None
    change_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class PublishedNumbers:
    """Estimates for the latest published epoch; `ratios` lacks the refused ones."""

    epoch: int
    numbers: tuple[PublishedNumber, ...]
    ratios: tuple[PublishedNumber, ...] = ()
