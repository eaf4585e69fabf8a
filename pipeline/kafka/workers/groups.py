"""The consumer groups of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

COMMITTED_BY = "dpstream"
"""The metadata of offsets that workers commit; tools that reset offsets leave another."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a partition.

    Attributes:
        offset: of the next record.
        own: True if a worker committed it; another program knows nothing of what is finished.
    """

    offset: int
    own: bool = True

    @classmethod
    def of(cls, found: Any) -> Committed | None:
        """Read what kafka-python or aiokafka return; None if nothing is committed."""
        if found is None or found.offset < 0:
            return None
        return cls(int(found.offset), found.metadata == COMMITTED_BY)


def floor_of(committed: Committed | None) -> int:
    """Return the offset below which a worker has finished everything; 0 if none committed it."""
    return committed.offset if committed is not None and committed.own else 0


class Deployment(Protocol):
    """What is asked of a `dpstream.pipeline.jobs.deployed_job.DeployedJob`."""

    @property
    def name(self) -> str:
        """The name of the job."""

    @property
    def deployment(self) -> bytes:
        """The id of the deployment, 16 bytes."""


def group_name(job: Deployment, stage: str) -> str:
    """The consumer group of a stage of a deployment."""
    return f"{job.name}.{stage}.{job.deployment.hex()}"
