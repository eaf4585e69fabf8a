"""How the answers of published estimates are printed and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from dpstream.pipeline.cli.answer_table import AnswerTable
from dpstream.pipeline.cli.errors import UsageProblem
from dpstream.pipeline.cli.estimate_lines import EpochTable, json_lines, table_lines
from dpstream.pipeline.cli.output import number, tell
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.asked import usual_query
from dpstream.pipeline.results.estimate_csv import csv_lines
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord

_PANEL = "Items and numbers"

NormSub = Annotated[
    bool,
    typer.Option(
        "--norm-sub",
        help="Also estimates that are not negative and add up to the population: biased.",
        rich_help_panel=_PANEL,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.png",
        dir_okay=False,
        help="Draw the estimates over the epochs with their bands, at most ten; of items the "
        "largest and of numbers the quartiles, if no other option says which.",
        rich_help_panel=_PANEL,
    ),
]


def answer_table(query: Query, *, truth: bool = False, value: str = "estimate") -> AnswerTable:
    """How the answers to a query are shown."""
    width = query.domain.width
    return AnswerTable(
        query.question, norm_sub=query.norm_sub, truth=truth, width=width, value=value
    )


def printed_lines(
    job: DeployedJob,
    query: Query | None,
    format: str,
    records: Iterable[EstimateRecord],
    change: int | None = None,
) -> Iterator[str]:
    """Lines of records as ``dpstream estimates`` prints them.

    Args:
        job: as deployed.
        query: that is answered; None for what is usual, in JSON for the records themselves.
        format: "table", "csv" or "json".
        records: in the order in which they are printed.
        change: of records of changes, since how many epochs ago.
    """
    if query is None and format == "csv":
        query = PublishedRows.of_everything(job).query
    elif query is None and format == "table":
        query = usual_query(job.domain)
    if query is not None:
        lines = answer_lines(job, query, format, records, change)
    elif format == "json":
        lines = json_lines(records, job.domain, _since(change))
    else:
        lines = table_lines(records, job, _value(change))
    if change is None or format != "table":
        return lines
    epochs = "the epoch before" if change == 1 else f"{change:,} epochs ago"
    return chain(lines, [f"\nchange: since {epochs}; ± sd, low and high are its own"])


def _value(change: int | None) -> str:
    return "estimate" if change is None else "change"


def _since(change: int | None) -> dict[str, int]:
    return {} if change is None else {"change_since": change}


def answer_lines(
    job: DeployedJob,
    query: Query,
    format: str,
    records: Iterable[EstimateRecord],
    change: int | None = None,
) -> Iterator[str]:
    """Lines of answers: "table", "csv" or "json" as of ``dpstream estimates``."""
    if format == "csv":
        return csv_lines(PublishedRows(job, query, _value(change)), records)
    if format == "table":
        return _table_lines(job, query, records, _value(change))
    return (json_text({**query.to_json(record), **_since(change)}) for record in records)


def _table_lines(
    job: DeployedJob, query: Query, records: Iterable[EstimateRecord], value: str
) -> Iterator[str]:
    table = answer_table(query, value=value)
    name, *columns = table.columns()
    names = query.question.names(query.domain)
    least = len(name) if query.domain.slots is None else max(len(name), 12)
    width = max(least, *map(len, names), 0)
    headers = [name.ljust(width), *(f">{each[1:]:>10}" for each in columns), notes_column(query)]
    return EpochTable(job, headers).lines(
        row for record in records for row in answer_rows(query, table, record)
    )


def answer_rows(
    query: Query,
    table: AnswerTable,
    record: EstimateRecord,
    truth: NDArray[np.int64] | None = None,
) -> Iterator[list[str]]:
    """The rows of an epoch in a table: its number, the cells of an answer each, and its notes."""
    notes = ", ".join(_notes(query, record))
    return table.rows(record.epoch, query.answers(record.estimate, truth), notes)


def notes_column(query: Query) -> str:
    """The header of the notes on an epoch."""
    return "± all" if query.question.selects else ""


def _notes(query: Query, record: EstimateRecord) -> Iterator[str]:
    width = query.simultaneous_half_width(record)
    if width is not None:
        yield number(width)
    yield from record.notes


def plot_answers(
    path: Path,
    job: DeployedJob,
    query: Query | None,
    records: Sequence[EstimateRecord],
    truth: NDArray[np.int64] | Mapping[int, NDArray[np.int64] | None] | None = None,
    *,
    said: str = "",
) -> None:
    """Draw what a query asks, or what shows best, into a file; what is `said` of it is named."""
    # Not at the top: few draw.
    from dpstream.pipeline.results.curves import curves_of, plotted_query, write_curves

    drawn = plotted_query(job.domain, query, records)
    epochs = [record.epoch for record in records]
    curves = curves_of(drawn, records, truth)
    if said:
        curves = [replace(curve, name=f"{curve.name}, {said}") for curve in curves]
    try:
        write_curves(path, job, drawn.question, epochs, curves)
    except ValueError as error:  # a file name that no kind of picture has
        raise UsageProblem(f"--plot {path}: {error}") from None
    tell(f"{path} is written")
