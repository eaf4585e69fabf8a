"""Commands about jobs: plan, deploy, undeploy, list."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import (
    AsJson,
    JobFile,
    JobName,
    KafkaConfig,
    Servers,
    cluster_of,
    name_of,
)
from pipeline.cli.output import (
    guarantee_pairs,
    instant,
    iso,
    now,
    number,
    plural,
    say,
    say_json,
    say_pairs,
    say_table,
)

if TYPE_CHECKING:
    from pipeline.deployed_job import DeployedJob
    from pipeline.plan import Plan


def plan(
    job: JobFile,
    users: Annotated[
        int, typer.Option(min=1, help="How many people are expected to take part.")
    ] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Say what a job promises and how accurate it will be, before there are any data."""
    from pipeline.jobs import load_job
    from pipeline.plan import plan as make_plan

    made = make_plan(load_job(job), users)
    if as_json:
        say_json({**made.to_json(), "interval_half_width": _half_width(made.rmse)})
    else:
        _show_plan(made)


def _show_plan(made: Plan) -> None:
    worst = max(made.epochs, key=lambda epoch: epoch.standard_deviation)
    say(f"{made.job}: {made.protocol}, {plural(len(made.epochs), 'epoch')}", "bold")
    say("\nprivacy", "bold")
    say_pairs(guarantee_pairs(made.guarantee))
    say(f"\naccuracy with {plural(made.users, 'user')}, all of them reporting", "bold")
    say_pairs(
        [
            ("root mean squared error", _share(made.rmse, made.users)),
            ("95 % interval", f"± {_share(_half_width(made.rmse), made.users)}"),
            (
                f"at worst, epoch {worst.epoch}",
                f"± {_share(_half_width(worst.standard_deviation), made.users)}",
            ),
        ]
    )
    say("\nusers needed for a root mean squared error", "bold")
    say_pairs(
        (
            f"of {needed.error:.0%}",
            "no number suffices" if needed.users is None else number(needed.users),
        )
        for needed in made.users_needed
    )
    say("\ntraffic of a user over all epochs", "bold")
    say_pairs(
        [
            ("reports", f"{made.reports_per_user:.1f}"),
            ("bytes", f"{made.bytes_per_user:.1f}, without headers"),
        ]
    )
    if made.constants:
        say("\nconstants", "bold")
        names = list(made.constants[0])
        say_table(
            [f">{name}" for name in names],
            ([_constant(row[name]) for name in names] for row in made.constants),
        )
    for caveat in made.caveats:
        say(f"\nnote: {caveat}")


def _half_width(standard_deviation: float) -> float:
    """Of a 95 % interval."""
    from aggregators.estimate import NORMAL_95

    return NORMAL_95 * standard_deviation


def _share(error: float, users: int) -> str:
    return f"{number(error)} users ({error / users:.1%})"


def _constant(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6f}"


def deploy(
    job: JobFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a deployed job of the same name.")
    ] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Create a job's topics and begin a new deployment. Starts the local broker if need be."""
    from pipeline import deployments
    from pipeline.jobs import load_job

    loaded = load_job(job)
    with cluster_of(servers, kafka_config, start_if_missing=True) as cluster:
        deployed = deployments.deploy(
            cluster, loaded, deployment=secrets.token_bytes(16), now=now(), replace=replace
        )
        where = cluster.connection.bootstrap_servers
    if as_json:
        say_json({**_to_json(deployed), "bootstrap_servers": list(where)})
        return
    name = deployed.name
    say(
        f"deployed {name} on {','.join(where)}: {plural(deployed.last_epoch, 'epoch')}, "
        f"deployment {deployed.deployment.hex()[:8]}"
    )
    say("to go on, each in a terminal of its own:")
    for stage in ("shuffle", "aggregate", "publish"):
        say(f"  dpstream run {stage} {name}")
    say(f"  dpstream produce {name} --input FILE")
    say(f"  dpstream estimates {name} --follow")


def undeploy(
    job: JobName,
    delete_topics: Annotated[
        bool,
        typer.Option("--delete-topics", help="Delete the job's topics, estimates included."),
    ] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """End a deployment. Its topics, with the estimates, stay unless they are to be deleted."""
    from pipeline import deployments

    with cluster_of(servers, kafka_config) as cluster:
        ended = deployments.undeploy(cluster, name_of(job), delete_topics=delete_topics)
    if as_json:
        say_json(
            {"job": ended.name, "deployment": ended.deployment.hex(), "deleted": delete_topics}
        )
    else:
        fate = "its topics are deleted" if delete_topics else "its topics stay"
        say(f"undeployed {ended.name}: {fate}; stop its workers and producers")


def list_jobs(
    servers: Servers = None, kafka_config: KafkaConfig = None, as_json: AsJson = False
) -> None:
    """List the deployed jobs."""
    from pipeline.deployments import deployed_jobs

    with cluster_of(servers, kafka_config) as cluster:
        jobs = deployed_jobs(cluster)
    found = [jobs[name] for name in sorted(jobs)]
    if as_json:
        say_json([_to_json(job) for job in found])
    elif not found:
        say("no job is deployed: dpstream deploy JOBFILE deploys one")
    else:
        say_table(
            ["job", "protocol", ">epochs", ">epsilon", "deployed", "deployment"],
            (
                (
                    job.name,
                    job.protocol,
                    number(job.last_epoch),
                    f"{job.guarantee().epsilon:.3g}",
                    instant(job.deployed_at),
                    job.deployment.hex()[:8],
                )
                for job in found
            ),
        )


def _to_json(job: DeployedJob) -> dict[str, Any]:
    return {
        "job": job.name,
        "protocol": job.protocol,
        "epochs": job.last_epoch,
        "partitions": job.partitions,
        "deployment": job.deployment.hex(),
        "fingerprint": job.fingerprint.hex(),
        "deployed_at": iso(job.deployed_at),
        "guarantee": job.guarantee().to_json(),
    }
