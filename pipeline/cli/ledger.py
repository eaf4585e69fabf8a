"""The command ``dpstream ledger``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, name_of
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.ledger_lines import (
    Selection,
    ledger_json,
    show_entries,
    show_findings,
    show_head,
    show_populations,
    show_releases,
    show_streams,
)
from dpstream.pipeline.cli.options import AsJson, KafkaConfig, Servers, Yes, ask
from dpstream.pipeline.cli.output import now, print_json, print_text
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.ledger_report import report_on
from dpstream.pipeline.ledger.ledger_topic import write_with_receipt
from dpstream.pipeline.ledger.writing import of_reopening


def ledger(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Name of a job, or its job file. Default: all jobs."),
    ] = None,
    population: Annotated[
        str | None,
        typer.Option("--population", metavar="NAME", help="Show only charges to this population."),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check that no entry was cut, edited, inserted or moved. Exits with 1 if one was.",
        ),
    ] = False,
    expected_head: Annotated[
        str | None,
        typer.Option(
            "--expected-head",
            metavar="HASH",
            help="(with --verify) Head that an earlier run printed and that you stored elsewhere.",
        ),
    ] = None,
    accept_loss: Annotated[
        str | None,
        typer.Option(
            "--accept-loss",
            metavar="REASON",
            help="Continue after damage to the ledger, without the lost entries. REASON is "
            "recorded. Asks for confirmation.",
        ),
    ] = None,
    yes: Yes = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show privacy charges, what was released for them, and remaining budgets.

    Every deployment is charged permanently; a replay is charged nothing. Each entry carries the
    hash of its predecessor, so --verify detects every entry that was cut, edited, inserted or
    moved. A cut at the end is detected by data stored elsewhere: receipts alongside the deployed
    jobs, releases, and the head, which you can store in a ticket.
    """
    if expected_head is not None and not re.fullmatch("[0-9a-f]{64}", expected_head):
        raise UsageProblem(
            f"--expected-head: got {expected_head!r}; expected the 64 hexadecimal digits of a head"
        )
    if expected_head is not None and not verify:
        raise UsageProblem("--expected-head requires --verify, which compares it: add --verify")
    with cluster_of(servers, kafka_config) as cluster:
        if accept_loss is not None:
            _accept_loss(cluster, accept_loss, yes=yes)
        name = None if job is None else name_of(job)
        report = report_on(cluster, None if name is None or verify else [name])
    selection = Selection(name, population)
    findings = report.findings(expected_head) if verify else None
    if as_json:
        print_json(ledger_json(report, selection, findings))
    else:
        if not verify:
            show_entries(report, selection)
            show_releases(report, selection)
            show_streams(report, selection)
            show_populations(report, selection)
        else:
            show_findings(report, findings or [])
        show_head(report)
    if findings:
        raise typer.Exit(FAILED)


def _accept_loss(cluster: Cluster, reason: str, *, yes: bool) -> None:
    if not reason.strip():
        raise UsageProblem(
            "--accept-loss is empty: give a reason, which the ledger records permanently"
        )
    if not yes:
        ask(
            "the ledger would continue without the lost entries. Entries that dpstream.jobs still "
            "contains are carried over, and --verify continues to report the damage",
            "nothing is written",
        )
    at = now()
    write_with_receipt(cluster, of_reopening(reason, at), at)
    print_text("the ledger continues")
