"""Read a job's stored data from a cluster, and check it for contradictions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.cluster import AccessError, Cluster, NoTopicError
from dpstream.pipeline.kafka.stored_state import KEPT, StoredState, check
from dpstream.pipeline.stages.estimate_records import own_estimate
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import read_head
from dpstream.topics.names import Role

# A paused publisher might have repeated the latest estimate, and checkpoints lie in between.
_ESTIMATES_READ = 4
# Windows are finalized almost in order.
_MANIFESTS_READ = 64


def topic_ids(cluster: Cluster, job: Job, roles: Collection[Role] | None = None) -> dict[Role, str]:
    """Return Kafka's topic IDs for `roles` (default: all), except the heartbeats topic."""
    names = {
        role: topic.name
        for role, topic in job.topic_settings().items()
        if role is not Role.STATUS and (roles is None or role in roles)
    }
    ids = cluster.topic_identities(names.values())
    return {role: ids[name] for role, name in names.items() if name in ids}


def stored_starts(cluster: Cluster, job: DeployedJob, roles: Collection[Role]) -> dict[Role, int]:
    starts = {}
    for role in roles:
        if role in KEPT and role in job.start_offsets:
            with suppress(NoTopicError, AccessError):
                starts[role] = cluster.start_offsets(job.topic(role))[0]
    return starts


def latest_epochs(
    cluster: Cluster, job: DeployedJob, roles: Collection[Role]
) -> tuple[int | None, int | None]:
    """Find the latest published epoch and the latest finalized epoch; each is None if unknown.

    Estimates are read first, so that every epoch among them was finalized earlier.
    """
    if not {Role.ESTIMATES, Role.MANIFESTS} <= set(roles):
        return None, None
    try:
        published = [
            estimate.epoch
            for value in _latest(cluster, job, Role.ESTIMATES, _ESTIMATES_READ)
            if (estimate := own_estimate(job, value)) is not None
        ]
        decided = [0]
        for value in _latest(cluster, job, Role.MANIFESTS, _MANIFESTS_READ):
            with suppress(CodecError):
                head = read_head(value)
                if head.deployment == job.deployment:
                    decided.append(head.epoch)
    except (NoTopicError, AccessError):
        return None, None
    return max(published, default=None), max(decided)


def _latest(cluster: Cluster, job: DeployedJob, role: Role, count: int) -> Iterator[bytes]:
    topic = job.topic(role)
    (end, *_) = cluster.end_offsets(topic)
    start = max(job.start_offset(role), end - count)
    return (record.value for record in cluster.read(topic, 0, start, end))


def check_stored(cluster: Cluster, job: DeployedJob, roles: Collection[Role]) -> None:
    published, decided = latest_epochs(cluster, job, roles)
    check(
        job,
        StoredState(
            ids=topic_ids(cluster, job, roles),
            starts=stored_starts(cluster, job, roles),
            published=published,
            decided=decided,
        ),
    )
