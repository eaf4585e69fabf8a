"""The consumer groups of a deployment."""

from __future__ import annotations

from typing import Protocol


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
