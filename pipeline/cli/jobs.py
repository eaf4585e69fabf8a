"""Commands about jobs: plan, deploy, undeploy, list."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.errors import UsageProblem
from pipeline.cli.inputs import load_input
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
    tell,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.deployed_job import DeployedJob
    from pipeline.jobs import Job
    from pipeline.plan import Plan, UsersNeeded
    from randomizers.guarantee import Guarantee


def plan(
    job: JobFile,
    users: Annotated[
        int, typer.Option(min=1, help="How many people are expected to take part.")
    ] = 10_000,
    error: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE|USERS",
            help="A wanted root mean squared error, such as 2% or 500: for how many users.",
        ),
    ] = None,
    changes_histogram: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV changes,share or changes,users: weighs noise against frozen users for "
            "parameters.changes.",
        ),
    ] = None,
    changes_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The same, counted in a change log. What is printed is not private then.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the error of every epoch into a PNG file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a job promises and how accurate it will be, before there are any data."""
    from pipeline.jobs import load_job
    from pipeline.plan import plan as make_plan

    loaded = load_job(job)
    changes = _changes(loaded, changes_histogram, changes_from)
    made = make_plan(
        loaded, users, error=None if error is None else _wanted_error(error), changes=changes
    )
    if as_json:
        say_json({**made.to_json(), "interval_half_width": _half_width(made.rmse)})
    else:
        _show_plan(made)
    if plot is not None:
        _plot(made, plot)
    if changes_from is not None:
        tell(
            f"not private: the shares of users by changes are counted in {changes_from} without "
            "any noise; do not publish them, nor what is said with other changes"
        )


def _plot(made: Plan, path: Path) -> None:
    from pipeline.plan_plot import write_plan_plot
    from pipeline.up.plot import PlotError

    try:
        write_plan_plot(made, path)
        tell(f"{path} is written")
    except PlotError as error:
        raise UsageProblem(str(error)) from None
    except ValueError as error:  # a file name that no kind of picture has
        raise UsageProblem(f"--plot {path}: {error}") from None


def _wanted_error(text: str) -> float:
    """A share of the users below 1, or a number of them from 1 on."""
    try:
        error = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        error = 0.0
    if not 0 < error < math.inf or (error >= 1 and text.endswith("%")):
        raise UsageProblem(
            f"--error is {text}: give a share of the users, such as 2%, or a number of them, such "
            "as 500"
        )
    return error


def _changes(job: Job, histogram: Path | None, log: Path | None) -> NDArray[np.float64] | None:
    """The share of users by number of changes, where one of the options gives it."""
    if histogram is not None and log is not None:
        raise UsageProblem("--changes-histogram and --changes-from are both there: give one")
    from pipeline.changes import count_changes, read_changes_histogram
    from pipeline.input.rows import BadRowsError

    if histogram is not None:
        return read_changes_histogram(histogram, job.epochs.count)
    if log is None:
        return None
    try:
        return count_changes(load_input(job, log, skip_bad_rows=False), job.epochs.count)
    except BadRowsError as error:
        raise BadRowsError(error.bad_rows, skippable=False) from None


def _show_plan(made: Plan) -> None:
    from pipeline.plan import rounding_note

    each = "" if made.guarantee.horizons is None else " in each horizon"
    say(f"{made.job}: {made.protocol}, {plural(len(made.epochs), 'epoch')}{each}", "bold")
    rounding = rounding_note(len(made.epochs), made.horizon)
    for warning in made.warnings:
        say(f"warning: {warning}")
    say("\nprivacy", "bold")
    say_pairs([*guarantee_pairs(made.guarantee), *_budget(made)])
    say(f"\naccuracy with {plural(made.users, 'user')}, all of them reporting", "bold")
    say_pairs(_accuracy(made))
    if made.most_users is not None:
        most, error = made.most_users.users, number(made.most_users.error)
        say("\nusers for a root mean squared error", "bold")
        say_pairs(
            [
                (
                    f"of at most {error} users",
                    "not even one user's error stays within that"
                    if most is None
                    else f"up to {plural(most, 'user')}: the error grows with them",
                )
            ]
        )
    say("\nusers needed for a root mean squared error", "bold")
    say_pairs((f"of {100 * needed.error:.3g}%", _users(needed)) for needed in made.users_needed)
    if made.changes:
        _show_changes(made)
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
    for note in (*([] if rounding is None else [rounding]), *made.caveats):
        say(f"\nnote: {note}")


def _budget(made: Plan) -> Iterator[tuple[str, str]]:
    if made.budget is not None:
        yield (
            "budget",
            f"epsilon {made.budget.epsilon:.6g}: {plural(made.budget.horizons, 'horizon')}, "
            f"{made.budget.charged:.6g} in all; what was charged before is known at deploy",
        )


def _accuracy(made: Plan) -> Iterator[tuple[str, str]]:
    worst = max(made.epochs, key=lambda epoch: epoch.standard_deviation)
    yield "root mean squared error", _share(made.rmse, made.users)
    yield "95 % interval", f"± {_share(_half_width(made.rmse), made.users)}"
    yield (
        f"at worst, epoch {worst.epoch}",
        f"± {_share(_half_width(worst.standard_deviation), made.users)}",
    )
    if made.smoothed_rmse is not None:
        yield "smoothed, at the end", f"{_share(made.smoothed_rmse, made.users)}"


def _show_changes(made: Plan) -> None:
    say("\nerror by parameters.changes, frozen users included", "bold")
    say_table(
        [">changes", ">noise", ">freezing bias", ">together", ">users frozen", ""],
        (
            [
                f"{choice.changes:,}",
                number(choice.noise),
                number(choice.bias),
                _share(choice.rmse, made.users),
                f"{choice.frozen:.2%}",
                "best" if choice.best else "",
            ]
            for choice in made.changes
        ),
    )


def _users(needed: UsersNeeded) -> str:
    return "no number suffices" if needed.users is None else number(needed.users)


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
    from pipeline.budgets import endless_warning
    from pipeline.jobs import load_job
    from pipeline.plan import horizon_of, rounding_note

    loaded = load_job(job)
    endless = endless_warning(loaded)
    if endless is not None:
        tell(f"WARNING: {endless}")
    with cluster_of(servers, kafka_config, start_if_missing=True) as cluster:
        deployed = deployments.deploy(
            cluster, loaded, deployment=secrets.token_bytes(16), now=now(), replace=replace
        )
        where = cluster.connection.bootstrap_servers
    rounding = rounding_note(deployed.epochs.count, horizon_of(deployed, deployed.law()))
    if rounding is not None:
        tell(f"note: {rounding}")
    if as_json:
        say_json({**_to_json(deployed), "bootstrap_servers": list(where)})
        return
    name = deployed.name
    say(
        f"deployed {name} on {','.join(where)}: {_length(deployed)}, "
        f"deployment {deployed.deployment.hex()[:8]}"
    )
    if deployed.epochs.renew:
        guarantee = _promised(deployed)
        say(f"it costs epsilon {guarantee.epsilon:.6g} for a user's {guarantee.spent_on}")
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
                    _length_in_short(job),
                    _epsilon_in_short(job),
                    instant(job.deployed_at),
                    job.deployment.hex()[:8],
                )
                for job in found
            ),
        )


def _length(job: DeployedJob) -> str:
    epochs = plural(job.epochs.count, "epoch")
    if not job.epochs.renew:
        return epochs
    if job.horizons is None:
        return f"horizons of {epochs} without end"
    return f"{plural(job.horizons, 'horizon')} of {epochs}"


def _length_in_short(job: DeployedJob) -> str:
    if not job.epochs.renew:
        return number(job.epochs.count)
    horizons = "n" if job.horizons is None else number(job.horizons)
    return f"{horizons} x {number(job.epochs.count)}"


def _epsilon_in_short(job: DeployedJob) -> str:
    endless = job.epochs.renew and job.horizons is None
    return f"{'n x ' if endless else ''}{_promised(job).epsilon:.3g}"


def _promised(job: DeployedJob) -> Guarantee:
    """What a job promises in all its horizons; without end, in one of them."""
    guarantee = job.guarantee()
    return guarantee.over(job.horizons or 1) if job.epochs.renew else guarantee


def _to_json(job: DeployedJob) -> dict[str, Any]:
    return {
        "job": job.name,
        "protocol": job.protocol,
        "epochs": job.last_epoch,
        "horizon": job.epochs.count if job.epochs.renew else None,
        "partitions": job.partitions,
        "deployment": job.deployment.hex(),
        "fingerprint": job.fingerprint.hex(),
        "deployed_at": iso(job.deployed_at),
        "guarantee": _promised(job).to_json(),
    }
