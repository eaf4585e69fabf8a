"""Deployed jobs: the compacted topic ``dpstream.jobs``, a record per name."""

from __future__ import annotations

from pathlib import Path

from pipeline.budgets import Charge, check_budget, horizons_within_budget
from pipeline.cluster import Cluster
from pipeline.deployed_job import DeployedJob, deploy_job
from pipeline.jobs import Job, describe_difference
from pipeline.jobs_topic import JobsTopic
from pipeline.noise_keys import noise_key_at
from pipeline.phases import JobPhase, Phase, phase_key
from pipeline.state import noise_key_file
from topics.names import JOBS_TOPIC, Role, jobs_topic, topic_name


class DeploymentError(Exception):
    """A job cannot be deployed or found; the message says what to do."""


def read_jobs(cluster: Cluster) -> JobsTopic:
    """What the jobs topic says now."""
    state = JobsTopic()
    if JOBS_TOPIC in cluster.topics():
        for record in cluster.read(JOBS_TOPIC):
            state.apply(record.key, record.value)
    return state


def deployed_jobs(cluster: Cluster) -> dict[str, DeployedJob]:
    """Every deployed job, by name."""
    return read_jobs(cluster).jobs


def set_phase(cluster: Cluster, job: DeployedJob, phase: Phase, now: int) -> None:
    """Say what a deployed job does from now on; `now` in milliseconds since 1970."""
    record = JobPhase(job.name, job.deployment, phase, now)
    cluster.append(JOBS_TOPIC, record.to_bytes(), key=record.key)


def find_deployed(cluster: Cluster, name: str) -> DeployedJob:
    """The deployed job of a name.

    Raises:
        DeploymentError: there is none.
    """
    jobs = deployed_jobs(cluster)
    if name not in jobs:
        known = ", ".join(sorted(jobs)) or "none at all"
        raise DeploymentError(
            f"job {name} is not deployed (deployed: {known}): dpstream deploy JOBFILE deploys it"
        )
    return jobs[name]


def deploy(
    cluster: Cluster,
    job: Job,
    *,
    deployment: bytes,
    now: int,
    replace: bool = False,
    noise_key: Path | None = None,
) -> DeployedJob:
    """Create a job's topics, and begin a new deployment where they end now.

    A job that renews is given as many horizons as its budget has room for, and charged for them.
    One whose shuffle stage adds noise is given the SHA-256 of a noise key.

    Args:
        cluster: where.
        job: the validated job.
        deployment: 16 random bytes.
        now: milliseconds since 1970.
        replace: take the place of a deployment of the same name.
        noise_key: the file of the key, which is made if it is missing; default: `noise_key_file`.

    Raises:
        DeploymentError: the name is taken.
        BudgetError: the people it is about would be charged more than the job allows.
        NoiseKeyError: the file holds no key, or others have access to it.
    """
    running = deployed_jobs(cluster).get(job.name)
    if running is not None and not replace:
        raise DeploymentError(_deployed_already(running, job))
    topics = job.topic_settings()
    cluster.create_topics([*topics.values(), jobs_topic(job.topics.replication)])
    deployed = deploy_job(
        job,
        start_offsets={
            role: tuple(cluster.end_offsets(topic.name)) for role, topic in topics.items()
        },
        deployed_at=now,
        deployment=deployment,
    )
    earlier = charges(cluster)
    if job.epochs.renew:
        horizons = horizons_within_budget(deployed, earlier)
        deployed = deployed.model_copy(update={"horizons": horizons})
    charge = check_budget(deployed, earlier)
    if deployed.needs_noise_key:
        key = noise_key_at(noise_key or noise_key_file(job.name))
        deployed = deployed.model_copy(update={"noise_key": key.digest})
    cluster.append(JOBS_TOPIC, charge.to_bytes(), key=charge.key)
    cluster.append(JOBS_TOPIC, deployed.to_bytes(), key=job.name.encode())
    return deployed


def check_unchanged(running: DeployedJob, job: Job) -> None:
    """See that a job file says of reports what the job deployed under its name says of them.

    Raises:
        DeploymentError: it does not; the message names the difference.
    """
    changes = describe_difference(running, job)
    if changes and _fingerprint(job) != running.fingerprint:
        raise DeploymentError(
            f"the job file says something else than the deployed job {job.name}, so its "
            f"fingerprint is another one ({'; '.join(changes)}): give the name {job.name} instead "
            "of the file to go on with what is deployed, or deploy the file under another name"
        )


def _deployed_already(running: DeployedJob, job: Job) -> str:
    """Why a job is not deployed over another one, with the differences, and what to do."""
    changes = "; ".join(describe_difference(running, job))
    deployed = f"job {job.name} is deployed already"
    begin = "--replace ends that deployment and begins a new one, charged again"
    if _fingerprint(job) != running.fingerprint:
        return (
            f"{deployed} under another fingerprint "
            f"({changes or 'the same settings, other constants'}), and their reports cannot be "
            f"added up: give this job another name; {begin}"
        )
    if changes:
        return (
            f"{deployed}, with other settings ({changes}) that leave the meaning of its reports as "
            f"it is: it goes on with its own, and there is no need to do anything; {begin}"
        )
    return f"{deployed}, with these settings: there is no need to do anything; {begin}"


def _fingerprint(job: Job) -> bytes:
    return deploy_job(job, deployed_at=0).fingerprint


def charges(cluster: Cluster) -> list[Charge]:
    """What every deployment so far has charged its population."""
    return read_jobs(cluster).charges


def undeploy(cluster: Cluster, name: str, *, delete_topics: bool = False) -> DeployedJob:
    """End a deployment; its topics stay unless they are to be deleted."""
    deployed = find_deployed(cluster, name)
    cluster.append(JOBS_TOPIC, None, key=name.encode())
    cluster.append(JOBS_TOPIC, None, key=phase_key(name))
    if delete_topics:
        cluster.delete_topics(topic_name(name, role) for role in Role)
    return deployed
