"""Commands about jobs: plan, deploy, undeploy, list."""

from __future__ import annotations

import math
import secrets
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
    instant,
    iso,
    now,
    number,
    plural,
    say,
    say_command,
    say_json,
    say_table,
    tell,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.deployed_job import DeployedJob
    from pipeline.jobs import Job
    from pipeline.plan import Plan
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
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Input of the job, or CSV item,count: errors are predicted for items as unequally "
            "held. What is printed is not private then.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the error of every epoch into a PNG file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a job promises and how accurate it will be, before there are any data."""
    from pipeline.cli.plan_lines import half_width, show_plan
    from pipeline.jobs import load_job
    from pipeline.plan import plan as make_plan

    loaded = load_job(job)
    changes = _changes(loaded, changes_histogram, changes_from)
    made = make_plan(
        loaded,
        users,
        error=None if error is None else _wanted_error(error),
        changes=changes,
        held=None if like is None else _held(loaded, like),
        compared=True,
    )
    if as_json:
        say_json({**made.to_json(), "interval_half_width": half_width(made.rmse)})
    else:
        show_plan(made)
    if plot is not None:
        _plot(made, plot)
    if changes_from is not None:
        tell(
            f"not private: the shares of users by changes are counted in {changes_from} without "
            "any noise; do not publish them, nor what is said with other changes"
        )
    if like is not None:
        tell(
            f"not private: errors are predicted for what {like} says, without any noise; do not "
            "publish them unless it is public"
        )


def _held(job: Job, path: Path) -> NDArray[np.float64]:
    """The share of the users that hold each item, as a file has it."""
    slots = job.domain.slots
    if slots is None:
        raise UsageProblem(f"--like is for items counted epoch by epoch, {job.protocol} has none")
    from pipeline.input.item_counts import counts_in, usual_shares
    from pipeline.input.item_log import ItemLog
    from pipeline.input.rows import BadRowsError

    counts = counts_in(path)
    if counts is not None:
        return counts * (slots / float(counts.sum()))
    try:
        log = load_input(job, path, skip_bad_rows=False)
    except BadRowsError as error:
        raise BadRowsError(error.bad_rows, skippable=False) from None
    assert isinstance(log, ItemLog)
    return usual_shares(log)


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
    from pipeline.input.change_log import ChangeLog
    from pipeline.input.rows import BadRowsError

    if histogram is not None:
        return read_changes_histogram(histogram, job.epochs.count)
    if log is None:
        return None
    try:
        values = load_input(job, log, skip_bad_rows=False)
    except BadRowsError as error:
        raise BadRowsError(error.bad_rows, skippable=False) from None
    if not isinstance(values, ChangeLog):
        raise UsageProblem(
            f"--changes-from is for values that change; {job.protocol} counts every epoch by itself"
        )
    return count_changes(values, job.epochs.count)


def deploy(
    job: JobFile,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a deployed job of the same name.")
    ] = False,
    noise_key: Annotated[
        Path | None,
        typer.Option(
            "--noise-key",
            metavar="FILE",
            help="Of jobs whose shuffle stage adds noise: the key of that noise, which is made if "
            "the file is missing. Default: a file in the state folder of this machine.",
        ),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Create a job's topics and begin a new deployment. Starts the local broker if need be."""
    from pipeline import deployments
    from pipeline.budgets import endless_warning
    from pipeline.jobs import load_job
    from pipeline.plan import horizon_of, rounding_note
    from pipeline.state import noise_key_file

    loaded = load_job(job)
    endless = endless_warning(loaded)
    if endless is not None:
        tell(f"WARNING: {endless}")
    with cluster_of(servers, kafka_config, start_if_missing=True) as cluster:
        deployed = deployments.deploy(
            cluster,
            loaded,
            deployment=secrets.token_bytes(16),
            now=now(),
            replace=replace,
            noise_key=noise_key,
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
    key = ""
    if deployed.needs_noise_key:
        key = "" if noise_key is None else f" --noise-key {noise_key}"
        file = noise_key or noise_key_file(name)
        say("its shuffle workers share this noise key: who has it can take their noise off")
        say_command(str(file))
    say("to go on, each in a terminal of its own:")
    say_command(f"dpstream run shuffle {name}{key}")
    for stage in ("aggregate", "publish"):
        say_command(f"dpstream run {stage} {name}")
    say_command(f"dpstream produce {name} --input FILE")
    say_command(f"dpstream estimates {name} --follow")


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
    from pipeline.state import noise_key_file

    with cluster_of(servers, kafka_config) as cluster:
        ended = deployments.undeploy(cluster, name_of(job), delete_topics=delete_topics)
    if as_json:
        say_json(
            {"job": ended.name, "deployment": ended.deployment.hex(), "deleted": delete_topics}
        )
    else:
        fate = "its topics are deleted" if delete_topics else "its topics stay"
        say(f"undeployed {ended.name}: {fate}; stop its workers and producers")
        if ended.needs_noise_key:
            say("its noise key takes the noise off its counts: delete the file")
            if (file := noise_key_file(ended.name)).exists():
                say_command(f"rm {file}")


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
    promised = _promised(job)
    if promised.unit == "epoch":
        return f"{promised.epsilon:.3g} an epoch"
    endless = job.epochs.renew and job.horizons is None
    return f"{'n x ' if endless else ''}{promised.epsilon:.3g}"


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
