"""The consumer groups of a deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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

    @property
    def floor(self) -> int:
        """The offset below which a worker has finished everything; 0 if no worker said so."""
        return self.offset if self.own else 0


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
