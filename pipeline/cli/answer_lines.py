"""Print and plot the answers of published estimates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.output import number, tell
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.results.counts_queries import Answer, Query
from dpstream.pipeline.results.derived_queries import PairQuery
from dpstream.pipeline.results.known_digits import mean_digits
from dpstream.pipeline.results.measure_words import partial_flags
from dpstream.pipeline.results.periods import Periods
from dpstream.pipeline.results.phrases import capital
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.pipeline.results.query_options import default_query
from dpstream.pipeline.results.roll_ups import WindowRecord
from dpstream.pipeline.results.row_queries import RowsQuery
from dpstream.pipeline.results.smoothing import WITHOUT_INTERVALS
from dpstream.pipeline.stages.estimate_records import EstimateRecord, shown_json
from dpstream.randomizers.equal_buckets import edge_text, rounded_text

_LABEL_WIDTH = 12


def epoch_lines(job: Job, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield aligned lines, with the start of every epoch if the job has a calendar.

    `columns` are headers as for `print_table`, padded with spaces to the width of their columns. A
    row starts with its epoch, or with "" if it continues the previous row.
    """
    calendar = job.epochs.calendar
    begins = [] if calendar is None else ["begins".ljust(len(calendar.shown(1)))]
    headers = ["> epoch", *begins, *columns]
    names = [header.removeprefix(">") for header in headers]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.rjust(len(name)) if header.startswith(">") else cell.ljust(len(name))
            for cell, name, header in zip(row, names, headers, strict=True)
        )
        return " ".join(cells).rstrip()

    yield line(names)
    for epoch, *cells in rows:
        begins = [] if calendar is None else [calendar.shown(int(epoch)) if epoch else ""]
        yield line([epoch, *begins, *cells])


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Table of the answers to a query; for the meaning of `value`, see `PublishedRows`."""

    query: Query
    value: str = "estimate"
    ground_truth: bool = False

    def lines(
        self, job: Job, epochs: Iterable[tuple[EstimateRecord, Sequence[Answer]]]
    ) -> Iterator[str]:
        notes = "± all" if self.query.counts_query.selects else ""
        counts = [">  reports", ">population"] if self._counts else []
        single = () if job.domain.kind == "items" else job.measures or ()
        rows = (
            self._rows(record, answers, partial_flags(job, single, record))
            for record, answers in epochs
        )
        return epoch_lines(job, [*self.columns, *counts, notes], chain.from_iterable(rows))

    @property
    def columns(self) -> list[str]:
        counts_query = self.query.counts_query
        labels = self.query.names
        least = 0 if self.query.domain.slots is None else _LABEL_WIDTH
        width = max(least, len(counts_query.kind), *map(len, labels), 0)
        return [
            *([] if self.query.column is None else [self.query.column.ljust(width)]),
            f">{_header(self.query, self.value):>10}",
            *([] if counts_query.in_values else [">    ± sd"]),
            *(">  95 % low", ">      high"),
            *([">  norm-sub"] if self.query.norm_sub else []),
            *([">ground truth"] if self.ground_truth else []),
        ]

    def cells(self, answer: Answer) -> list[str]:
        counts_query, width = self.query.counts_query, self.query.domain.width
        ground_truth = answer.ground_truth
        if counts_query.in_values:
            shown = [_in_values(answer.value, width)]
            shown += [edge_text(end, width) for end in (answer.ci95_low, answer.ci95_high)]
            ground_truths = [_in_values(ground_truth, width)]
        else:
            estimate = answer.value, answer.standard_error, answer.ci95_low, answer.ci95_high
            shown = [_number(each, self.query) for each in estimate]
            ground_truths = [number(None if ground_truth is None else round(ground_truth))]
            if self.query.is_mean(answer):
                *shown, truth = (mean_text(each, answer) for each in (*estimate, ground_truth))
                ground_truths = [truth]
            if answer.refused is not None:
                shown[0] = "refused"
        return [
            *([] if self.query.column is None else [answer.name]),
            *shown,
            *([number(answer.norm_sub)] if self.query.norm_sub else []),
            *(ground_truths if self.ground_truth else []),
        ]

    @property
    def _counts(self) -> bool:
        return self.query.column is None and not self.ground_truth

    def _rows(
        self, record: EstimateRecord, answers: Sequence[Answer], more: Sequence[str]
    ) -> Iterator[list[str]]:
        width = self.query.simultaneous_half_width(record)
        shown = [] if width is None else [_number(width, self.query)]
        notes = [*shown, *record.notes, *more]
        counts = [number(record.summary.reports), number(record.population)]
        window = record.first_epoch if isinstance(record, WindowRecord) else record.epoch
        first, numbers = str(window), counts if self._counts else []
        if not answers:
            yield [first, *["-"] * len(self.columns), *numbers, ", ".join(notes)]
        for answer in answers:
            own = dict.fromkeys([*notes, *answer.flags])
            yield [first, *self.cells(answer), *numbers, ", ".join(own)]
            first, numbers, notes = "", [""] * len(numbers), []


def _header(query: Query, value: str) -> str:
    if not query.percent:
        return value if query.derived in (None, "row") else query.derived
    if query.derived == "row":
        groups = isinstance(query, RowsQuery) and any(each.row.attributes for each in query.rows)
        return "% of group's users" if groups else "% of all users"
    return "points" if query.derived == "difference" else "% of all users"


def _number(value: float | None, query: Query) -> str:
    """Format a number of users, or a derived number in the unit of its header."""
    if value is None or math.isnan(value):
        return "-"
    if query.derived is None or (query.derived == "row" and not query.percent):
        return number(value)
    return f"{100 * value:,.1f}" if query.percent else f"{value:,.3f}"


def mean_text(value: float | None, answer: Answer) -> str:
    """Format a number in the unit of a mean, with the decimals that the mean's interval knows."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.{mean_digits(answer.ci95_low, answer.ci95_high)}f}"


def _in_values(value: float | None, width: float) -> str:
    return "-" if value is None else rounded_text(value, width)


_PANEL = "Items and numbers"
_SMOOTHED = (
    "smoothed: estimated from the reports of all epochs so far, with its own ± sd, low and high"
)

NormSub = Annotated[
    bool,
    typer.Option(
        "--norm-sub",
        help="Also print nonnegative, biased estimates that sum to the population.",
        rich_help_panel=_PANEL,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.png",
        dir_okay=False,
        help="Plot at most ten estimates by epoch, with confidence bands. Default: the largest "
        "items, or the quartiles of numbers.",
        rich_help_panel=_PANEL,
    ),
]


def printed_lines(
    job: DeployedJob,
    query: Query | None,
    format: str,
    records: Iterable[EstimateRecord],
    value: str = "estimate",
    periods: Periods | None = None,
) -> Iterator[str]:
    """Yield records as lines, in a format of ``dpstream estimates``: table, csv or json.

    Without a `query`, yields the answers to the default query; in JSON, yields the records.
    For `value`, see `PublishedRows`.
    """
    back = None if periods is None else periods.epochs_back
    averaged = None if periods is None else periods.averages
    if format == "json":
        more = {} if back is None else {"change_since": back}
        for record in records:
            body = record_json(job, record) if query is None else query.to_json(record)
            yield json_text({**body, **more})
    elif format == "csv":
        rows = PublishedRows.of(job, query, value, windows=averaged is not None)
        yield from rows.csv_lines(records)
    else:
        requested = query or default_query(job.domain)
        latest: list[EstimateRecord] = []

        def answered() -> Iterator[tuple[EstimateRecord, Sequence[Answer]]]:
            for record in records:
                latest[:] = [record]
                yield record, requested.answers_of(record)

        yield from AnswerTable(requested, value).lines(job, answered())
        if value == "smoothed":
            yield f"\n{_SMOOTHED}; --json adds biased estimates\n{WITHOUT_INTERVALS}"
        yield from () if periods is None else _period_lines(periods)
        if isinstance(requested, PairQuery):
            for record in latest:
                yield f"\n{capital(epoch_name(job, record.epoch).name)}:"
                yield from requested.sentences(record)


def _period_lines(periods: Periods) -> Iterator[str]:
    change, interval = periods.change, periods.interval
    if change is not None:
        what = "epoch" if interval is None else "period"
        since = f"the previous {what}" if change == 1 else f"{change:,} {what}s ago"
        yield f"\nchange: since {since}, with its own ± sd, low and high"
    if interval is not None and periods.averages is None:
        yield f"\nthe last epoch of every {interval:,} epochs"
    elif interval is not None:
        over = f"{periods.value} over" if change is None else "periods of"
        yield f"\n{over} {interval:,} epochs, starting with the one shown"


def record_json(job: DeployedJob, record: EstimateRecord) -> dict[str, Any]:
    """Return a record as in the topic; rows that the job does not show have no number."""
    body, estimate = record.to_json(), record.estimate
    body["estimate"] = shown_json(estimate)
    if estimate is not None and estimate.detection_threshold is not None:
        body["estimate"]["labels"] = job.domain.labels(estimate.numbers)
    return body


def plot_answers(
    path: Path,
    job: DeployedJob,
    query: Query | None,
    records: Sequence[EstimateRecord],
    ground_truth: NDArray[np.int64] | Mapping[int, NDArray[np.int64] | None] | None = None,
    *,
    label: str = "",
) -> None:
    """Plot the answers to a query (default: the most informative); curve names contain `label`."""
    # Not at the top: few commands plot.
    from dpstream.pipeline.results.curves import curves_of, plotted_query, write_curves

    drawn = plotted_query(job.domain, query, records)
    curves = curves_of(drawn, records, ground_truth)
    if label:
        curves = [replace(curve, name=f"{curve.name}, {label}") for curve in curves]
    try:
        write_curves(path, job, drawn.counts_query, records, curves)
    except ValueError as error:  # unknown image format
        raise UsageProblem(f"--plot {path}: {error}") from None
    tell(f"wrote {path}")
