"""How the answers of published estimates are printed and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from dpstream.pipeline.cli.answer_table import AnswerTable
from dpstream.pipeline.cli.errors import UsageProblem
from dpstream.pipeline.cli.estimate_lines import epoch_cells, json_lines, table_lines
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


def answer_table(query: Query, *, truth: bool = False) -> AnswerTable:
    """How the answers to a query are shown."""
    return AnswerTable(
        query.question, norm_sub=query.norm_sub, truth=truth, width=query.domain.width
    )


def printed_lines(
    job: DeployedJob, query: Query | None, format: str, records: Iterable[EstimateRecord]
) -> Iterator[str]:
    """Lines of records as ``dpstream estimates`` prints them.

    Args:
        job: as deployed.
        query: that is answered; None for what is usual, in JSON for the records themselves.
        format: "table", "csv" or "json".
        records: in the order in which they are printed.
    """
    if query is None and format == "csv":
        return csv_lines(PublishedRows.of_everything(job), records)
    if query is None and format == "json":
        return json_lines(records, job.domain)
    query = query or usual_query(job.domain)
    if query is None:
        return table_lines(records, job)
    return answer_lines(job, query, format, records)


def answer_lines(
    job: DeployedJob, query: Query, format: str, records: Iterable[EstimateRecord]
) -> Iterator[str]:
    """Lines of answers: "table", "csv" or "json" as of ``dpstream estimates``."""
    if format == "csv":
        return csv_lines(PublishedRows(job, query), records)
    if format == "table":
        return _table_lines(job, query, records)
    return _json_lines(query, records)


def _table_lines(
    job: DeployedJob, query: Query, records: Iterable[EstimateRecord]
) -> Iterator[str]:
    table = answer_table(query)
    name, *columns = table.columns()
    names = query.question.names(query.domain)
    least = len(name) if query.domain.slots is None else max(len(name), 12)
    width = max(least, *map(len, names), 0)
    line = "{} {:<" + str(width) + "}" + " {:>10}" * len(columns) + " {}"
    header = [each[1:] for each in columns]
    epochs = epoch_cells(job)
    first = epochs(0)
    yield line.format(first, name, *header, notes_column(query)).rstrip()
    for record in records:
        cells = [table.cells(answer) for answer in query.answers(record.estimate)]
        for epoch, *row in answer_rows(query, record, cells, len(header) + 1):
            begins = epochs(record.epoch) if epoch else " " * len(first)
            yield line.format(begins, *row).rstrip()


def answer_rows(
    query: Query, record: EstimateRecord, answers: Sequence[list[str]], width: int
) -> Iterator[list[str]]:
    """The rows of an epoch in a table: its number, the cells of an answer each, and its notes."""
    epoch, notes = str(record.epoch), ", ".join(_notes(query, record))
    for cells in answers or [["-"] * width]:
        yield [epoch, *cells, notes]
        epoch = notes = ""


def notes_column(query: Query) -> str:
    """The header of the notes on an epoch."""
    return "± all" if query.question.selects else ""


def _notes(query: Query, record: EstimateRecord) -> Iterator[str]:
    width = query.simultaneous_half_width(record)
    if width is not None:
        yield number(width)
    yield from record.notes


def _json_lines(query: Query, records: Iterable[EstimateRecord]) -> Iterator[str]:
    for record in records:
        yield json_text(query.to_json(record))


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
    from dpstream.pipeline.operations.up.curves import curves_of, plotted_query, write_curves

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
