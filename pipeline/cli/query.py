"""The command ``dpstream query``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeAlias

import typer

from dpstream.pipeline.cli.answer_lines import AnswerTable, printed_lines
from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job, local_results
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.options import (
    Box,
    Crowd,
    Format,
    Item,
    JobName,
    KafkaConfig,
    Quantile,
    Range,
    Servers,
    Top,
)
from dpstream.pipeline.cli.output import (
    print_line,
    print_lines,
    print_pairs,
    print_table,
    print_text,
    tell,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.results.counts_queries import Answers, Query
from dpstream.pipeline.results.epoch_counts import (
    EpochCounts,
    check_epochs,
    check_windows,
    composed,
    counts_windows,
    follow_counts,
    read_counts,
    read_latest,
)
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.results.periods import Periods
from dpstream.pipeline.results.phrases import flag_words
from dpstream.pipeline.results.published_rows import csv_row
from dpstream.pipeline.results.query_options import (
    QueryOptions,
    check_supported,
    default_counts_query,
    default_query,
    evaluate,
    make_query,
)
from dpstream.pipeline.results.roll_ups import window_mean
from dpstream.randomizers.guarantee import format_loss, rounded_up

Answered: TypeAlias = "Iterable[tuple[EpochCounts, Answers | None]]"
"""Epochs, or sums over epochs, with the answers for each; None without a released epoch."""

_COLUMNS = ("estimate", "standard_error", "ci95_low", "ci95_high")


def query(
    job: JobName,
    epoch: Annotated[
        int | None, typer.Option(metavar="E", help="Epoch of the job. Default: the latest.")
    ] = None,
    epochs: Annotated[
        str | None,
        typer.Option(
            metavar="A..B",
            help="Sum epochs A to B, inclusive. For jobs such as sampled_response, average them.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue to print new epochs until the last one.")
    ] = False,
    item: Item = None,
    top: Top = None,
    range_: Range = None,
    quantile: Quantile = None,
    box: Box = None,
    crowd: Crowd = None,
    format: Annotated[
        Format,
        typer.Option(help="Output format. json: one object per line; csv: rows below a header."),
    ] = Format.table,
    as_json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Query windows of a job with independent epochs: items, ranges, boxes, quantiles.

    For jobs that track users over epochs, --epochs queries the mean over several epochs. Top items
    of a large domain are searched for in the answers of all these epochs together. Queries cost no
    privacy: released data may be queried any number of times.
    """
    if epoch is not None and epochs is not None:
        raise UsageProblem("--epoch and --epochs are mutually exclusive")
    if follow and epochs is not None:
        raise UsageProblem("--epochs sums existing epochs: remove --follow")
    added = None if epochs is None else first_and_last(epochs)
    with local_results(servers, kafka_config), cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        query_options = QueryOptions(item, top, range_, quantile, box, crowd)
        if added is not None and not counts_windows(deployed):
            _print_mean(cluster, deployed, added, query_options, "json" if as_json else format)
            return
        check_windows(deployed)
        counts_query = query_options.counts_query(deployed.domain) or default_counts_query(deployed)
        check_supported(deployed, counts_query)
        windows = _windows(cluster, deployed, epoch, added, follow)
        answered = (
            (
                window,
                None if window.counts is None else evaluate(window, deployed.domain, counts_query),
            )
            for window in windows
        )
        if format is Format.table and not as_json:
            _print_answers(deployed, answered)
            return
        written = _csv_lines if format is Format.csv and not as_json else _json_lines
        for line in written(deployed, answered):
            print_line(line, flush=True)


def _print_mean(
    cluster: Cluster,
    job: DeployedJob,
    epochs: tuple[int, int],
    query_options: QueryOptions,
    format: str,
) -> None:
    requested = make_query(job.domain, query_options)
    check_epochs(job, *epochs)
    periods = Periods(job, epochs[1] - epochs[0] + 1)
    record = window_mean(job, EstimateReader(cluster, job).read(), *epochs)
    window = record.epoch - record.first_epoch + 1
    if format != Format.table:
        print_lines(printed_lines(job, requested, format, [record], "mean", periods))
        return
    query = requested or default_query(job.domain)
    of = "" if record.averaged == window else f"{record.averaged:,} of the "
    print_text(
        f"{job.name}, mean of {of}{window:,} epochs {record.first_epoch:,} to {record.epoch:,}: "
        f"{record.summary.reports:,} reports",
        "bold",
    )
    table = AnswerTable(query, "mean")
    print_table(table.columns, [table.cells(each) for each in query.answers(record.estimate)])
    print_pairs((flag, flag_words(job, flag)) for flag in record.flags)


def _windows(
    cluster: Cluster,
    job: DeployedJob,
    epoch: int | None,
    added: tuple[int, int] | None,
    follow: bool,
) -> Iterator[EpochCounts]:
    if follow:
        yield from follow_counts(cluster, job, epoch, notify=tell)
    elif added is not None:
        yield read_from(cluster, job, read_counts(job, *added))
    elif epoch is not None:
        yield read_from(cluster, job, read_counts(job, epoch))
    else:
        yield read_from(cluster, job, read_latest(job))


def first_and_last(text: str) -> tuple[int, int]:
    first, dots, last = text.partition("..")
    if not dots or not first.strip().isdecimal() or not last.strip().isdecimal():
        raise UsageProblem(
            f"--epochs: got {text!r}; expected the first and the last epoch, such as 3..7"
        )
    return int(first), int(last)


def _print_answers(job: DeployedJob, answered: Answered) -> None:
    first, promised = True, False
    for window, answers in answered:
        if not first:
            print_text()
        if answers is None:
            print_text(f"{job.name}: {'; '.join(map(str, window.suppressed))}", "bold")
        else:
            print_text(_title(job, window), "bold")
            _print_table(job, answers)
            print_text()
            print_pairs(_about(window, answers))
            # The guarantee does not change.
            if not promised:
                print_pairs(_guarantee(job, len(window.epochs)))
                promised = True
        first = False
        sys.stdout.flush()


def _csv_lines(job: DeployedJob, answered: Answered) -> Iterator[str]:
    header = False
    for window, answers in answered:
        if answers is None:
            continue
        if not header:
            yield ",".join(["epoch", answers.counts_query.kind, *_COLUMNS, "population"])
            header = True
        first, last = window.first, window.last
        numbers = str(first) if first == last else f"{first}..{last}"
        for answer in answers.answers:
            body = answer.to_json()
            cells = (body[column] for column in _COLUMNS)
            yield csv_row(numbers, answer.name, *cells, window.users)


def _json_lines(job: DeployedJob, answered: Answered) -> Iterator[str]:
    for window, answers in answered:
        body = {
            "job": job.name,
            **({"epoch": window.first} if window.first == window.last else {}),
            "first_epoch": window.first,
            "last_epoch": window.last,
            "epochs": list(window.epochs),
            "suppressed": window.suppressed,
            "contributors": window.contributors,
            "population": window.users,
            "guarantee": job.guarantee,
            "composed": composed(job, max(1, len(window.epochs))),
        }
        yield json_text(body | ({} if answers is None else answers.to_json()))


def _title(job: DeployedJob, window: EpochCounts) -> str:
    people = f"{window.contributors:,} of {window.users:,} users contributed"
    if window.first == window.last:
        return f"{job.name}, {job.position_of(window.first)}: {people}"
    if window.averages:
        return f"{job.name}, mean of epochs {window.first:,} to {window.last:,}: {people}"
    return (
        f"{job.name}, sum of epochs {window.first:,} to {window.last:,}: {people}, each "
        "counted once per epoch"
    )


def _print_table(job: DeployedJob, answers: Answers) -> None:
    table = AnswerTable(Query(job.domain, answers.counts_query))
    rows = [table.cells(answer) for answer in answers.answers]
    print_table(table.columns, rows or [["none found", *["-"] * (len(table.columns) - 1)]])


def _about(window: EpochCounts, answers: Answers) -> Iterator[tuple[str, str]]:
    yield "estimator", answers.estimator
    yield from (("note", note) for note in answers.notes)
    yield from (("left out", str(suppressed)) for suppressed in window.suppressed)


def _guarantee(job: DeployedJob, epochs: int) -> Iterator[tuple[str, str]]:
    own, of_all = job.guarantee, composed(job, epochs)
    what = "items in one epoch" if own.unit == "epoch" else "whole stream"
    loss = f"{format_loss(own.epsilon, own.delta)} for a user's {what}"
    if epochs > 1 and own.unit == "epoch":
        bound = "" if of_all.exact else "at most "
        loss += f"; {bound}{rounded_up(of_all.epsilon)} for these {epochs:,} epochs together"
    yield "guarantee", loss
    yield "trusted party", own.trust
