"""Replays on a cluster: which one was begun, and how one begins."""

from __future__ import annotations

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.phases import Phase
from dpstream.pipeline.jobs.replays import ReplayError, deploy_replay
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.kafka.kept_topics import topic_ids
from dpstream.pipeline.ledger.ledger_topic import write_entries
from dpstream.pipeline.ledger.writing import of_replay
from dpstream.topics.names import JOBS_TOPIC, jobs_topic


def find_replay(cluster: Cluster, original: DeployedJob, job: Job) -> DeployedJob | None:
    """The replay that an earlier run began and did not finish, if there is one.

    Raises:
        ReplayError: the name is taken by something else; the message says by what.
    """
    state = read_jobs(cluster)
    running = state.jobs.get(job.name)
    another = "give the replay another name with --as"
    if job.name in state.unreadable:
        raise ReplayError(
            f"job {job.name} was deployed by another version of the software, which this one "
            f"cannot read: {another}"
        )
    if running is None:
        return None
    origin = running.replay_of
    if origin is None or (origin.job, origin.deployment) != (original.name, original.deployment):
        raise ReplayError(
            f"job {job.name} is deployed already, and is no replay of this deployment of "
            f"{original.name}: {another}"
        )
    changes = describe_difference(running, job)
    if changes:
        raise ReplayError(
            f"job {job.name} is a replay of {original.name} with other settings "
            f"({'; '.join(changes)}): {another}"
        )
    if state.phase(job.name) is Phase.DRAINED:
        raise ReplayError(
            f"job {job.name} is a replay of {original.name} that is finished: {another}, or end "
            f"it with dpstream undeploy {job.name}"
        )
    return running


def begin_replay(
    cluster: Cluster,
    original: DeployedJob,
    job: Job,
    *,
    deployment: bytes,
    now: int,
    first_epoch: int | None = None,
) -> DeployedJob:
    """Create a replay's topics, and begin its deployment where they end; see `deploy_replay`."""
    topics = job.topic_settings()
    cluster.create_topics([*topics.values(), jobs_topic(job.topics.replication)])
    deployed = deploy_replay(
        original,
        job,
        deployment=deployment,
        deployed_at=now,
        first_epoch=first_epoch,
        start_offsets={
            role: tuple(cluster.end_offsets(topic.name)) for role, topic in topics.items()
        },
    ).model_copy(update={"topic_ids": topic_ids(cluster, job)})
    write_entries(cluster, of_replay(deployed, now), job.topics.replication)
    cluster.append(JOBS_TOPIC, deployed.to_bytes(), key=job.name.encode())
    return deployed
