"""``dpstream query``: questions answered from the windows themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from dpstream.pipeline.cli.cluster_and_jobs import cluster_of, find_job
from dpstream.pipeline.cli.errors import UsageProblem
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
from dpstream.pipeline.cli.output import say_line, tell
from dpstream.pipeline.cli.window_answer_lines import LINES, say_answers
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.topic_reader import read_from
from dpstream.pipeline.results.asked import Asked, ask, check_askable, usual_question
from dpstream.pipeline.results.epoch_counts import (
    EpochCounts,
    check_per_epoch,
    follow_counts,
    read_counts,
    read_latest,
)


def query(
    job: JobName,
    epoch: Annotated[
        int | None, typer.Option(metavar="E", help="Of the job. Default: the latest.")
    ] = None,
    epochs: Annotated[
        str | None, typer.Option(metavar="A..B", help="Add these up, from the first to the last.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with every new epoch until the last one.")
    ] = False,
    item: Item = None,
    top: Top = None,
    range_: Range = None,
    quantile: Quantile = None,
    box: Box = None,
    crowd: Crowd = None,
    format: Annotated[
        Format, typer.Option(help="json is one object a line, csv has a header.")
    ] = Format.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Ask the windows of a job whose epochs stand alone: items, ranges, boxes, quantiles.

    Asking costs no privacy: what was released may be asked for ever.
    """
    if epoch is not None and epochs is not None:
        raise UsageProblem("--epoch and --epochs do not go together: give one of them")
    if follow and epochs is not None:
        raise UsageProblem("--epochs adds up what there is: leave --follow out")
    added = None if epochs is None else first_and_last(epochs)
    with cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        check_per_epoch(deployed)
        asked = Asked(item, top, range_, quantile, box, crowd)
        question = asked.question(deployed.domain) or usual_question(deployed)
        check_askable(deployed, question)
        windows = _windows(cluster, deployed, epoch, added, follow)
        answered = (
            (window, None if window.counts is None else ask(window, deployed.domain, question))
            for window in windows
        )
        if format is Format.table and not as_json:
            say_answers(deployed, answered)
            return
        for line in LINES["json" if as_json else format](deployed, answered):
            say_line(line, flush=True)


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
    """What ``--epochs A..B`` says."""
    first, dots, last = text.partition("..")
    if not dots or not first.strip().isdecimal() or not last.strip().isdecimal():
        raise UsageProblem(f"--epochs is {text}: give the first and the last one, such as 3..7")
    return int(first), int(last)
