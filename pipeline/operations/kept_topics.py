"""Read from a cluster what is kept of a job, and check that it agrees with itself."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import Cluster, NoTopicError
from dpstream.pipeline.kafka.kept_state import KEPT, KeptState, check
from dpstream.topics.names import Role


def topic_ids(cluster: Cluster, job: Job, roles: Collection[Role] | None = None) -> dict[Role, str]:
    """Kafka's ids of topics of a job, by default of all; heartbeats may be lost without harm."""
    names = {
        role: topic.name
        for role, topic in job.topic_settings().items()
        if role is not Role.STATUS and (roles is None or role in roles)
    }
    ids = cluster.topic_identities(names.values())
    return {role: ids[name] for role, name in names.items() if name in ids}


def kept_starts(cluster: Cluster, job: DeployedJob, roles: Collection[Role]) -> dict[Role, int]:
    """Offsets at which the kept topics among `roles` begin; of one that is gone nothing."""
    starts = {}
    for role in roles:
        if role in KEPT and role in job.start_offsets:
            with suppress(NoTopicError):
                starts[role] = cluster.start_offsets(job.topic(role))[0]
    return starts


def check_kept(cluster: Cluster, job: DeployedJob, roles: Collection[Role]) -> None:
    """Check topics before a role of the job uses them.

    Raises:
        ContradictionError: they contradict the deployment or each other.
    """
    check(
        job,
        KeptState(ids=topic_ids(cluster, job, roles), starts=kept_starts(cluster, job, roles)),
    )
