"""How the answers of published estimates are printed and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from dpstream.pipeline.cli.answer_table import AnswerTable
from dpstream.pipeline.cli.errors import UsageProblem
from dpstream.pipeline.cli.output import tell
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.asked import usual_query
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.questions import Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord

_PANEL = "Items and numbers"
_SMOOTHED = "smoothed: from the reports of all epochs so far; ± sd, low and high are its own"

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


def printed_lines(
    job: DeployedJob,
    query: Query | None,
    format: str,
    records: Iterable[EstimateRecord],
    value: str = "estimate",
    change: int | None = None,
) -> Iterator[str]:
    """Lines of records as ``dpstream estimates`` prints them.

    Args:
        job: as deployed.
        query: that is answered; None for what is usual, in JSON for the records themselves.
        format: "table", "csv" or "json".
        records: in the order in which they are printed.
        value: what the numbers are, see `PublishedRows`.
        change: of records of changes, since how many epochs ago.
    """
    if format == "json":
        more = {} if change is None else {"change_since": change}
        for record in records:
            body = record_json(job, record) if query is None else query.to_json(record)
            yield json_text({**body, **more})
    elif format == "csv":
        yield from PublishedRows.of(job, query, value).csv_lines(records)
    else:
        asked = query or usual_query(job.domain)
        answered = ((record, asked.answers(record.estimate)) for record in records)
        yield from AnswerTable(asked, value).lines(job, answered)
        if value == "smoothed":
            yield f"\n{_SMOOTHED}"
        if change is not None:
            epochs = "the epoch before" if change == 1 else f"{change:,} epochs ago"
            yield f"\nchange: since {epochs}; ± sd, low and high are its own"


def record_json(job: DeployedJob, record: EstimateRecord) -> dict[str, Any]:
    """Return a record as in the topic, with the labels of found items."""
    body, estimate = record.to_json(), record.estimate
    if estimate is not None and estimate.found_above is not None:
        body["estimate"]["labels"] = job.domain.labels(estimate.numbers)
    return body


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
