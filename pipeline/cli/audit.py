"""The command ``dpstream audit``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpstream.pipeline.audit.audits import (
    FALSE_ALARM,
    Attack,
    Audit,
    AuditOutcome,
    Finding,
    run_attacks,
)
from dpstream.pipeline.audit.plans import (
    FULL,
    QUICK,
    AuditProfile,
    attacks_on_accounting,
    attacks_on_all,
    attacks_on_deployed,
    attacks_on_job,
    attacks_on_protocol,
)
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, job_of_file
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.inputs import progress_to_go
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, Servers
from dpstream.pipeline.cli.output import plural, print_json, print_table, print_text
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.kafka.connection import NoClusterError
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError, find_deployed
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.replacements import missing_protocol

_ROWS_SHOWN = 40


def audit(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB|JOBFILE|PROTOCOL]",
            help="Name of a protocol, a job file, or the name of a deployed job. Default: all "
            "protocols.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=20,
            help="Half the number of trials per attack. More trials detect smaller losses. "
            "Default: 5000, which takes a few minutes per protocol.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Draw fewer samples: at most a minute for all protocols."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seed for a repeatable audit. Default: new randomness.")
    ] = None,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Compare observed and claimed privacy loss. Exits with 1 if the observed loss is larger.

    Attacks one protocol or job, or all protocols.
    """
    profile = QUICK if quick else FULL
    if trials is not None:
        profile = profile.with_trials(trials)
    attacks = _attacks(subject, profile, servers, kafka_config)
    with progress_to_go() as progress:
        bar = progress.add_task("attacking", total=sum(attack.seconds for attack in attacks))
        started: list[Attack] = []

        def show(attack: Attack) -> None:
            progress.update(
                bar,
                description=f"{attack.subject}: {attack.name}",
                advance=started[-1].seconds if started else 0.0,
            )
            started.append(attack)

        found = run_attacks(attacks, seed=seed, on_attack=show)
    if as_json:
        print_json(found)
    else:
        _show(found)
    if found.failed:
        raise typer.Exit(FAILED)


def _attacks(
    subject: str | None, profile: AuditProfile, servers: str | None, kafka_config: Path | None
) -> list[Attack]:
    if subject is None:
        return attacks_on_all(profile)
    accounting = [] if profile.quick else attacks_on_accounting()
    if subject in PROTOCOLS:
        return attacks_on_protocol(subject, profile) + accounting
    if said := missing_protocol(subject):
        raise UsageProblem(f"protocol {said}")
    job = job_of_file(subject)
    if job is not None:
        return attacks_on_job(job, profile) + accounting
    try:
        with cluster_of(servers, kafka_config) as cluster:
            deployed = find_deployed(cluster, subject)
    except (DeploymentError, NoClusterError) as error:
        raise UsageProblem(f"{subject} is neither a protocol nor a usable job: {error}") from None
    return attacks_on_deployed(deployed, profile) + accounting


def _show(found: Audit) -> None:
    rows = found.findings
    if len(rows) > _ROWS_SHOWN:
        rows = tuple(_strongest(rows))
    print_table(
        {
            "subject": "subject",
            "attack": "attack",
            ">claimed": lambda each: _epsilon(each.claimed, each.delta),
            ">observed": lambda each: _epsilon(
                each.observed, each.delta, exact=each.outcome is AuditOutcome.EXACT
            ),
            "outcome": "outcome.value",
            "scope": "what",
        },
        rows,
    )
    print_text()
    for finding in found.findings:
        if finding.failed:
            print_text(f"FAILED: {finding.subject}, {finding.attack}: {finding.reason}", "bold red")
    if not found.failed:
        print_text(f"{plural(len(found.findings), 'attack')}: none contradicts the claims")
    if len(rows) < len(found.findings):
        print_text(
            "The table shows the result closest to the claim for each protocol and attack. --json "
            "prints all results"
        )
    print_text(
        "claimed and observed: epsilon (delta). exact: all possible observations were enumerated. "
        "consistent: the lower confidence bound, computed from samples, is below the claim"
    )
    print_text(
        f"False alarms: a correct program fails with probability at most {found.false_alarm:.2g}. "
        f"The total of {FALSE_ALARM:g} is divided evenly among the "
        f"{plural(found.drawn, 'finding')} based on samples. Each finding's share is divided "
        "evenly among its comparisons"
    )


def _strongest(findings: Sequence[Finding]) -> Iterable[Finding]:
    found: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = finding.subject.rpartition("-")[0] or finding.subject, finding.attack
        if key not in found or _strength(finding) > _strength(found[key]):
            found[key] = finding
    return found.values()


def _strength(finding: Finding) -> tuple[bool, float]:
    if finding.claimed is None or finding.observed is None:
        return finding.failed, 0.0
    return finding.failed, finding.observed / max(finding.claimed, 1e-12)


def _epsilon(epsilon: float | None, delta: float, *, exact: bool = True) -> str:
    if epsilon is None:
        return "-"
    size = "infinite" if math.isinf(epsilon) else f"{epsilon:.4g}"
    also = f" ({delta:g})" if delta else ""
    return f"{'' if exact else '>= '}{size}{also}"
