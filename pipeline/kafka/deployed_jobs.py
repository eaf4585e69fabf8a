"""Deployed jobs on a cluster, read from the compacted topic ``dpstream.jobs``.

Separate from `deployments`, so that readers need not import code for planning and charging.
"""

from __future__ import annotations

from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_differences import describe_difference
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_phases import JobPhase, Phase
from dpstream.pipeline.jobs.jobs_topic import JobsTopic
from dpstream.pipeline.jobs.spare_cells import with_names_of
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.topics.names import JOBS_TOPIC


class DeploymentError(DpstreamError):
    pass


def read_jobs(cluster: Cluster) -> JobsTopic:
    return _read_jobs(cluster)


def _read_jobs(cluster: Cluster, only: str | None = None) -> JobsTopic:
    """Read the state of the jobs topic; with `only`, read only the state of that job.

    Parsing a job takes milliseconds, and a worker needs no job but its own.
    """
    state = JobsTopic()
    wanted = None if only is None else only.encode()
    if cluster.exists(JOBS_TOPIC):
        for record in cluster.read(JOBS_TOPIC):
            if wanted is None or record.key == wanted:
                state.apply(record.key, record.value)
    return state


def set_phase(cluster: Cluster, job: DeployedJob, phase: Phase, now: int) -> None:
    record = JobPhase(job.name, job.deployment, phase, now)
    cluster.append(JOBS_TOPIC, record.to_bytes(), key=record.key)


def find_deployed(cluster: Cluster, name: str) -> DeployedJob:
    """Return a job; raise DeploymentError if it is missing or of an incompatible version."""
    state = _read_jobs(cluster, name)
    if name in state.unreadable:
        raise DeploymentError(
            f"job {name} was deployed by an incompatible version of dpstream: use that "
            "version, or replace the job: 'dpstream deploy JOBFILE --replace'"
        )
    if name not in state.jobs:
        known = ", ".join(sorted(read_jobs(cluster).jobs)) or "none"
        raise DeploymentError(
            f"job {name} is not deployed (deployed: {known}). To deploy it: 'dpstream "
            "deploy JOBFILE'"
        )
    return state.jobs[name]


def check_unchanged(running: DeployedJob, job: Job) -> None:
    """Raise DeploymentError if reports have another meaning in a job file than in the job."""
    job = with_names_of(running, job)
    changes = describe_difference(running, job)
    if changes and deploy_job(job, deployed_at=0).fingerprint != running.fingerprint:
        raise DeploymentError(
            f"the fingerprints of the job file and of the deployed job {job.name} differ "
            f"({'; '.join(changes)}): to use the deployed job, pass its name instead of the "
            "file; otherwise, deploy the file under another name"
        )


def check_has_devices(job: DeployedJob) -> None:
    """Raise DeploymentError for a replay, which has neither devices nor a shuffler."""
    if job.replay_of is not None:
        raise DeploymentError(
            f"job {job.name} is a replay of {job.replay_of.job}: its windows are already "
            "finalized, and it has no devices and no shuffler. Run 'dpstream run aggregate' "
            "and 'dpstream run publish'"
        )


class NoProducersError(DeploymentError):
    exit_code = WRONG_INPUT


def check_has_producers(job: Job) -> None:
    """Raise NoProducersError if the job's devices report directly instead of through producers."""
    if job.devices is not None:
        raise NoProducersError(
            f"devices of job {job.name} report directly, without producers. 'dpstream "
            "collect' receives their reports, 'dpstream status' shows the collectors, and "
            "'dpstream simulate' tests the job on a file"
        )
