"""``dpstream query``: questions answered from the windows themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.errors import UsageProblem
from pipeline.cli.options import JobName, KafkaConfig, Servers, cluster_of, find_job
from pipeline.cli.output import say_line, tell
from pipeline.cli.watch import Format

if TYPE_CHECKING:
    from pipeline.cluster import Cluster
    from pipeline.deployed_job import DeployedJob
    from pipeline.epoch_counts import EpochCounts
    from pipeline.questions import Question

_QUESTION = "Questions, one kind at a time"


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
    item: Annotated[
        list[str] | None,
        typer.Option(metavar="X", help="This item; may be repeated.", rich_help_panel=_QUESTION),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|A,B,...", help="Those of a file, one a line.", rich_help_panel=_QUESTION
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="The items most held.", rich_help_panel=_QUESTION),
    ] = None,
    range_: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--range",
            metavar="A B",
            help="How many numbers lie from A to below B; of whole numbers, from A to B.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    box: Annotated[
        list[str] | None,
        typer.Option(
            metavar="A1:B1,A2:B2",
            help="How many points lie there, ends included; may be repeated.",
            rich_help_panel=_QUESTION,
        ),
    ] = None,
    quantile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="Q", help="0.9: below which nine of ten lie.", rich_help_panel=_QUESTION
        ),
    ] = None,
    median: Annotated[
        bool, typer.Option("--median", help="--quantile 0.5.", rich_help_panel=_QUESTION)
    ] = False,
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
    from aggregators.cell_window import NotAskedForError
    from pipeline.answers import ask
    from pipeline.cli.query_lines import LINES, say_answers
    from pipeline.queries import QueryError

    if epoch is not None and epochs is not None:
        raise UsageProblem("--epoch and --epochs do not go together: give one of them")
    if follow and epochs is not None:
        raise UsageProblem("--epochs adds up what there is: leave --follow out")
    added = None if epochs is None else first_and_last(epochs)
    with cluster_of(servers, kafka_config) as cluster:
        deployed = find_job(cluster, job)
        try:
            question = _question(deployed, item, items, top, range_, box, quantile, median)
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
        except (QueryError, NotAskedForError) as error:
            raise UsageProblem(str(error)) from None


def _question(
    job: DeployedJob,
    item: list[str] | None,
    items: str | None,
    top: int | None,
    range_: tuple[str, str] | None,
    box: list[str] | None,
    quantile: list[str] | None,
    median: bool,
) -> Question:
    """The question that the options make; what is usual if none of them was given."""
    from pipeline import questions
    from pipeline.epoch_counts import check_per_epoch

    check_per_epoch(job)
    domain = questions.sets_of(job.domain)
    made: dict[str, Question] = {}
    if item:
        made["--item"] = questions.item_numbers(domain, item)
    if items is not None:
        made["--items"] = questions.items_listed(domain, items)
    if top is not None:
        made["--top"] = questions.Top(top)
    if range_ is not None:
        made["--range"] = questions.value_range(domain, *range_)
    if box:
        made["--box"] = questions.grid_boxes(domain, box)
    shares = [*(quantile or []), *(["0.5"] if median else [])]
    if shares:
        option = "--quantile" if quantile else "--median"
        made[option] = questions.quantiles(domain, shares, option)
    if len(made) > 1:
        raise UsageProblem(f"{' and '.join(made)} do not go together: give one of them")
    question = next(iter(made.values()), None) or questions.usual_question(job)
    return questions.check_askable(job, question)


def _windows(
    cluster: Cluster,
    job: DeployedJob,
    epoch: int | None,
    added: tuple[int, int] | None,
    follow: bool,
) -> Iterator[EpochCounts]:
    from pipeline.epoch_counts import read_counts, read_latest
    from pipeline.follow import follow_counts
    from pipeline.smoothing import read_from

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
