"""Which jobs are deployed on a cluster: read from the compacted topic ``dpstream.jobs``.

Apart from `deployments`, which plans, charges and writes down: whoever asks about a job needs none
of that.
"""

from __future__ import annotations

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_phases import JobPhase, Phase
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.topics.names import JOBS_TOPIC


class DeploymentError(DpstreamError):
    """A job cannot be deployed or found; the message says what to do."""


def read_jobs(cluster: Cluster) -> JobsTopic:
    """What the jobs topic says now."""
    return _read_jobs(cluster)


def _read_jobs(cluster: Cluster, only: str | None = None) -> JobsTopic:
    """What the jobs topic says now, or no more of it than the record of one job.

    A job takes milliseconds to take in, and its worker needs no other.
    """
    state = JobsTopic()
    wanted = None if only is None else only.encode()
    if cluster.exists(JOBS_TOPIC):
        for record in cluster.read(JOBS_TOPIC):
            if wanted is None or record.key == wanted:
                state.apply(record.key, record.value)
    return state


def set_phase(cluster: Cluster, job: DeployedJob, phase: Phase, now: int) -> None:
    """Say what a deployed job does from now on; `now` in milliseconds since 1970."""
    record = JobPhase(job.name, job.deployment, phase, now)
    cluster.append(JOBS_TOPIC, record.to_bytes(), key=record.key)


def find_deployed(cluster: Cluster, name: str) -> DeployedJob:
    """The deployed job of a name.

    Raises:
        DeploymentError: there is none, or none that this version of the software can read.
    """
    state = _read_jobs(cluster, name)
    if name in state.unreadable:
        raise DeploymentError(
            f"job {name} was deployed by another version of this software: use that version, or "
            "put another job in its place (dpstream deploy JOBFILE --replace)"
        )
    if name not in state.jobs:
        known = ", ".join(sorted(read_jobs(cluster).jobs)) or "none at all"
        raise DeploymentError(
            f"job {name} is not deployed (deployed: {known}): dpstream deploy JOBFILE deploys it"
        )
    return state.jobs[name]


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


def _fingerprint(job: Job) -> bytes:
    return deploy_job(job, deployed_at=0).fingerprint


def check_has_devices(job: DeployedJob) -> None:
    """See that a job has devices and a shuffle stage, which a replay has not.

    Raises:
        DeploymentError: it is a replay.
    """
    if job.replay_of is not None:
        raise DeploymentError(
            f"job {job.name} is a replay of {job.replay_of.job}: the windows of a replay are "
            "decided already, it has no devices and no shuffle stage; run aggregate and publish"
        )


class NoProducersError(DeploymentError):
    """Producers are asked for, of a job that has none."""

    exit_code = WRONG_INPUT


def check_has_producers(job: Job) -> None:
    """See that a job has producers, which one whose devices report for themselves has not.

    Raises:
        NoProducersError: it has none.
    """
    if job.devices is not None:
        raise NoProducersError(
            f"devices of job {job.name} report for themselves, and it has no producers: dpstream "
            "collect takes their reports, dpstream status says what collectors do, and dpstream "
            "simulate tries the job on a file"
        )
