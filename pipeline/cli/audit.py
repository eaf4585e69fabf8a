"""``dpstream audit``: attacks on the installed code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pipeline.audit.audit_plot import write_audit_plot
from pipeline.audit.audits import Attack, Audit, run_attacks
from pipeline.audit.plans import (
    FULL,
    QUICK,
    Effort,
    attacks_around_job,
    attacks_around_protocol,
    attacks_on_all,
    attacks_on_deployed,
    attacks_on_job,
    attacks_on_protocol,
)
from pipeline.cli.audit_lines import show_audit
from pipeline.cli.cluster_and_jobs import cluster_of, job_of_file
from pipeline.cli.errors import UsageProblem
from pipeline.cli.inputs import progress_to_go
from pipeline.cli.options import AsJson, KafkaConfig, Servers
from pipeline.cli.output import say_json, tell
from pipeline.errors import FAILED
from pipeline.jobs.job_files import make_job
from pipeline.kafka.connection import NoClusterError
from pipeline.operations.deployed_jobs import DeploymentError, find_deployed
from pipeline.protocols.registry import PROTOCOLS


def audit(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB|JOBFILE|PROTOCOL]",
            help="What is attacked: a protocol by its name, a job file, or a deployed job by its "
            "name. Default: all protocols.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=20,
            help="How thorough attacks by samples are: half as many epochs as are judged of "
            "released windows. Default: 5000, which takes a few minutes for a protocol.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="What can be tried of all protocols in a minute.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Makes the attacks repeatable. Default: new randomness.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw what is claimed and observed into a PNG file."),
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Attack the installed code as who sees what a party sees. Exit code 1 if convicted."""
    effort = QUICK if quick else FULL
    if trials is not None:
        effort = replace(
            effort,
            trials=trials,
            windows=min(effort.windows, trials),
            together=min(effort.together, 80 * trials),
        )
    attacks, left_out = _attacks(subject, effort, servers, kafka_config)
    with progress_to_go() as progress:
        bar = progress.add_task("attacking", total=sum(attack.seconds for attack in attacks))
        begun: list[Attack] = []

        def show(attack: Attack) -> None:
            progress.update(
                bar,
                description=f"{attack.subject}: {attack.name}",
                advance=begun[-1].seconds if begun else 0.0,
            )
            begun.append(attack)

        found = run_attacks(attacks, seed=seed, on_attack=show, left_out=left_out)
    if as_json:
        say_json(found.to_json())
    else:
        show_audit(found)
    if plot is not None:
        _plot(found, plot)
    if found.convicted:
        raise typer.Exit(FAILED)


def _plot(found: Audit, path: Path) -> None:
    try:
        write_audit_plot(found, path)
        tell(f"{path} is written")
    except ValueError as error:  # a file name that no kind of picture has
        raise UsageProblem(f"--plot {path}: {error}") from None


def _attacks(
    subject: str | None, effort: Effort, servers: str | None, kafka_config: Path | None
) -> tuple[list[Attack], dict[str, str]]:
    """Those on all protocols, on one by its name, on a job by its file, or on a deployed one.

    And the names of attacks that are left out, each with why.
    """
    if subject is None:
        return attacks_on_all(effort), {}
    if subject in PROTOCOLS:
        around, left_out = attacks_around_protocol(subject, effort)
        return attacks_on_protocol(subject, effort) + around, left_out
    job = job_of_file(subject)
    if job is not None:
        around, left_out = attacks_around_job(job, effort)
        return attacks_on_job(job, effort) + around, left_out
    try:
        with cluster_of(servers, kafka_config) as cluster:
            deployed = find_deployed(cluster, subject)
    except (DeploymentError, NoClusterError) as error:
        raise UsageProblem(f"there is no protocol {subject}, and as a job: {error}") from None
    around, left_out = attacks_around_job(make_job(deployed.to_json()), effort)
    return attacks_on_deployed(deployed, effort) + around, left_out
