"""The command ``dpstream list``, and descriptions of deployed jobs."""

from __future__ import annotations

from typing import Any

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, Servers
from dpstream.pipeline.cli.output import (
    iso,
    number,
    plural,
    print_json,
    print_table,
    print_text,
    tell,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.randomizers.guarantee import Guarantee, rounded_up


def list_jobs(
    servers: Servers = None, kafka_config: KafkaConfig = None, as_json: AsJson = False
) -> None:
    """List the deployed jobs."""
    with cluster_of(servers, kafka_config) as cluster:
        state = read_jobs(cluster)
    jobs = [state.jobs[name] for name in sorted(state.jobs)]
    for name in sorted(state.unreadable):
        tell(
            f"job {name} was deployed by an incompatible version of dpstream: use that version "
            "to list it"
        )
    if as_json:
        print_json(
            [
                job_json(job)
                | {
                    "phase": state.phase(job.name),
                    "replay_of": None if job.replay_of is None else job.replay_of.job,
                }
                for job in jobs
            ]
        )
    elif not jobs:
        print_text("no job is deployed. To deploy one: 'dpstream deploy JOBFILE'")
    else:
        print_table(
            {
                "=job": "name",
                "protocol": "protocol",
                ">epochs": _length_in_short,
                ">epsilon": _epsilon_in_short,
                "phase": lambda job: _phase_in_short(job, state.phase(job.name)),
                "deployed": lambda job: iso(job.deployed_at)[:10],
                "id": lambda job: job.deployment.hex()[:8],
            },
            jobs,
        )


def length(job: DeployedJob) -> str:
    epochs = plural(job.epochs.count, "epoch")
    if not job.epochs.renew:
        return epochs
    if job.horizons is None:
        return f"unlimited horizons of {epochs}"
    return f"{plural(job.horizons, 'horizon')} of {epochs}"


def _length_in_short(job: DeployedJob) -> str:
    if not job.epochs.renew:
        return number(job.epochs.count)
    horizons = "n" if job.horizons is None else number(job.horizons)
    return f"{horizons} x {number(job.epochs.count)}"


def _epsilon_in_short(job: DeployedJob) -> str:
    if job.replay_of is not None:
        return "none"
    guarantee = promised(job)
    delta = f", delta {rounded_up(guarantee.delta, 3)}" if guarantee.delta else ""
    if guarantee.unit == "epoch":
        return f"{rounded_up(guarantee.epsilon, 3)}{delta} per epoch"
    endless = job.epochs.renew and job.horizons is None
    return f"{'n x ' if endless else ''}{rounded_up(guarantee.epsilon, 3)}{delta}"


def _phase_in_short(job: DeployedJob, phase: Phase) -> str:
    return phase.value + (f", replay of {job.replay_of.job}" if job.replay_of else "")


def promised(job: DeployedJob) -> Guarantee:
    """Return a job's guarantee over all its horizons, or over one horizon if it never ends."""
    guarantee = job.guarantee
    return guarantee.over(job.horizons or 1) if job.epochs.renew else guarantee


def job_json(job: DeployedJob) -> dict[str, Any]:
    return {
        "job": job.name,
        "protocol": job.protocol,
        "epochs": job.last_epoch,
        "horizon": job.epochs.count if job.epochs.renew else None,
        "partitions": job.topics.partitions,
        "deployment": job.deployment,
        "fingerprint": job.fingerprint,
        "deployed_at": iso(job.deployed_at),
        "guarantee": promised(job),
    }
