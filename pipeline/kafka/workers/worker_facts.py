"""What rules of alarm need to know of a job, and does not change while its workers run."""

from __future__ import annotations

from collections.abc import Mapping
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


def heartbeat(
    stage: Mapping[str, object],
    positions: Mapping[int, int],
    ends: Mapping[int, int],
    read: int,
    seconds: float,
) -> dict[str, object]:
    """The words of a worker at work.

    Where devices rely on the stage to hide how many messages they send, the numbers of records are
    left out: nearly each of them is a batch.

    Args:
        stage: the stage's own heartbeat.
        positions: the next offset to read, by partition owned.
        ends: where partitions end, as far as that is known.
        read: records read since the last heartbeat.
        seconds: since then.

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
    """A number of an epoch, and by how much it has changed since the epoch before.

    Attributes:
        item: what it is about; empty for a job that counts one value.
        value: the estimate.
        interval: its 95 % interval; None where no coverage is claimed.
        change: since the epoch before; None where it is not known.
        change_interval: that of the change, which is its own.
    """

    item: str
    value: float
    interval: tuple[float, float] | None = None
    change: float | None = None
    change_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class PublishedNumbers:
    """The numbers of the latest epoch that was published; none where nothing is said of it."""

    epoch: int
    numbers: tuple[PublishedNumber, ...]
