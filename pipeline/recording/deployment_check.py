"""Whether a job is still the one that is deployed, for whoever follows it for long."""

from __future__ import annotations

import time
from collections.abc import Callable

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs

_LOOK_SECONDS = 5.0


class DeploymentCheck:
    """Looks at ``dpstream.jobs`` now and then.

    Args:
        cluster: where the job was deployed.
        job: as it was then.
        clock: seconds of any origin.
    """

    def __init__(
        self, cluster: Cluster, job: DeployedJob, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._clock = clock
        self._next = clock() + _LOOK_SECONDS

    def ended(self) -> str | None:
        """How the deployment has ended, in words; None while it has not, or nobody looked.

        Raises:
            KafkaError: the broker does not answer; ask again.
        """
        if self._clock() < self._next:
            return None
        jobs, name = read_jobs(self._cluster), self._job.name
        self._next = self._clock() + _LOOK_SECONDS
        if name in jobs.unreadable:
            return None
        if name not in jobs.jobs:
            return f"job {name} has been undeployed"
        if jobs.jobs[name].deployment != self._job.deployment:
            return f"job {name} has been deployed anew"
        return None
