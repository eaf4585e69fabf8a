"""Options that ask for items, ranges and quantiles, and how the answers are printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.errors import UsageProblem
from pipeline.cli.output import number, plural, say, say_pairs, say_table, tell

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.deployed_job import DeployedJob
    from pipeline.estimate_records import EstimateRecord
    from pipeline.input.values import ValueDomain
    from pipeline.queries import Answer, Query
    from pipeline.simulate import Simulation

_ROWS_SHOWN = 24
_LABELS_MEASURED = 1 << 12
_PANEL = "Items and numbers"

Items = Annotated[
    str | None,
    typer.Option("--items", metavar="A,B,...", help="These items.", rich_help_panel=_PANEL),
]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        min=1,
        metavar="N",
        help="The items with the largest estimates. Selecting biases upwards: ± all holds for all "
        "items of the domain at once.",
        rich_help_panel=_PANEL,
    ),
]
Ranges = Annotated[
    str | None,
    typer.Option(
        "--ranges",
        metavar="LOW:HIGH,...",
        help="How many numbers lie from LOW to below HIGH.",
        rich_help_panel=_PANEL,
    ),
]
Quantiles = Annotated[
    str | None,
    typer.Option("--quantiles", metavar="Q,...", help="0.5 is the median.", rich_help_panel=_PANEL),
]
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


def query_of(
    domain: ValueDomain,
    items: str | None,
    top: int | None,
    ranges: str | None,
    quantiles: str | None,
    norm_sub: bool,
) -> Query | None:
    """The query that the options of a command make; None if none of them was given."""
    from pipeline.queries import QueryError, make_query

    try:
        return make_query(
            domain, items=items, top=top, ranges=ranges, quantiles=quantiles, norm_sub=norm_sub
        )
    except QueryError as error:
        raise UsageProblem(str(error)) from None


def answer_cells(query: Query, answer: Answer) -> list[str]:
    """The cells of a table's row after the epoch, in the order of `answer_columns`."""
    values = [answer.value, answer.standard_deviation, answer.low, answer.high]
    if query.norm_sub:
        values.append(answer.norm_sub)
    if query.kind == "quantile":
        return [answer.name, *("-" if value is None else f"{value:.6g}" for value in values)]
    return [answer.name, *map(number, values)]


def answer_columns(query: Query) -> list[str]:
    """The columns of a table after the epoch, as `pipeline.cli.output.say_table` has them."""
    fitted = [">norm-sub"] if query.norm_sub else []
    return [query.kind, ">estimate", ">± sd", ">95 % low", ">high", *fitted]


def answer_lines(query: Query, format: str) -> Callable[[Iterable[EstimateRecord]], Iterator[str]]:
    """Makes lines of records: "table", "csv" or "json" as of ``dpstream estimates``."""
    from pipeline.estimate_csv import answer_csv_lines

    lines = {"table": _table_lines, "csv": answer_csv_lines, "json": _json_lines}[format]
    return lambda records: lines(query, records)


def _table_lines(query: Query, records: Iterable[EstimateRecord]) -> Iterator[str]:
    name, *columns = answer_columns(query)
    width = max(len(name), *map(len, _names(query)), *([] if query.sets is None else [12]))
    line = "{:>6} {:<" + str(width) + "}" + " {:>10}" * len(columns) + " {}"
    header = [each[1:] for each in columns]
    yield line.format("epoch", name, *header, _notes_column(query)).rstrip()
    for record in records:
        cells = [answer_cells(query, answer) for answer in query.answers(record.estimate)]
        for row in _rows(query, record, cells, len(header) + 1):
            yield line.format(*row).rstrip()


def _rows(
    query: Query, record: EstimateRecord, answers: Sequence[list[str]], width: int
) -> Iterator[list[str]]:
    """The rows of an epoch in a table: its number, the cells of an answer each, and its notes."""
    epoch, notes = str(record.epoch), ", ".join(_notes(query, record))
    for cells in answers or [["-"] * width]:
        yield [epoch, *cells, notes]
        epoch = notes = ""


def _notes_column(query: Query) -> str:
    return "± all" if query.top is not None else ""


def _notes(query: Query, record: EstimateRecord) -> Iterator[str]:
    from aggregators.estimate import ItemEstimates
    from aggregators.top_items import simultaneous_half_width
    from topics.manifests import Fate

    if query.top is not None and isinstance(record.estimate, ItemEstimates):
        yield number(simultaneous_half_width(record.estimate))
    if record.fate is not Fate.RELEASED:
        yield record.fate.value
    if record.estimate is not None:
        yield from record.estimate.flags


def _names(query: Query) -> list[str]:
    if query.ranges:
        return [name for name, _, _ in query.ranges]
    if query.quantiles:
        return [f"{share:g}" for share in query.quantiles]
    if query.sets is not None:
        labels = query.sets.items
        known = query.items or range(_LABELS_MEASURED)
        return [] if labels is None else [labels[index] for index in known if index < len(labels)]
    return [query.labels[index] for index in query.items or range(len(query.labels))]


def _json_lines(query: Query, records: Iterable[EstimateRecord]) -> Iterator[str]:
    from pipeline.queries import record_json

    for record in records:
        yield json.dumps(record_json(query, record), allow_nan=False)


def plot_answers(
    path: Path,
    job: DeployedJob,
    query: Query | None,
    records: Sequence[EstimateRecord],
    truth: NDArray[np.int64] | Mapping[int, NDArray[np.int64]] | None = None,
    *,
    smoothed: bool = False,
) -> None:
    """Draw what a query asks, or what shows best, into a file; whether `smoothed` is said there."""
    from pipeline.queries import Query
    from pipeline.up.curves import curves_of, plotted_query, write_curves
    from pipeline.up.plot import PlotError

    drawn = plotted_query(job.domain, query, records) or Query(labels=())
    epochs = [record.epoch for record in records]
    curves = curves_of(drawn, records, truth)
    if smoothed:
        curves = [replace(curve, name=f"{curve.name}, smoothed") for curve in curves]
    try:
        write_curves(path, job, job.guarantee(), drawn.kind, epochs, curves)
    except PlotError as error:
        raise UsageProblem(str(error)) from None
    except ValueError as error:  # a file name that no kind of picture has
        raise UsageProblem(f"--plot {path}: {error}") from None
    tell(f"{path} is written")


def show_simulations(query: Query, simulations: Sequence[Simulation]) -> None:
    """Print the answers of the first of several trials, and how accurate all of them are."""
    from pipeline.query_trials import accuracy

    first = simulations[0]
    columns = [*answer_columns(query), ">truth"]
    answered = [
        (record, query.answers(record.estimate, first.truth[record.epoch]))
        for record in first.records
    ]
    most = max((len(answers) for _, answers in answered), default=0)
    step = -(-len(answered) * max(most, 1) // _ROWS_SHOWN)
    say_table(
        [">epoch", *columns, _notes_column(query)],
        (
            row
            for record, answers in answered[::-step][::-1]
            for row in _rows(
                query, record, [_with_truth(query, each) for each in answers], len(columns)
            )
        ),
    )
    if step > 1:
        say(f"one epoch in {step} is shown, --json prints all {len(answered):,}")
    found = accuracy(query, simulations)
    if found is None:
        return
    unit = "" if query.kind == "quantile" else " users"
    trials = f" of {plural(len(simulations), 'trial')}" if len(simulations) > 1 else ""
    said = "" if found.predicted is None else f", predicted {number(found.predicted)}"
    smoothed = ", smoothed" if first.smoothed else ""
    say(f"\nanswers at all epochs{trials}{smoothed}", "bold")
    say_pairs(
        [
            ("root mean squared error", f"{number(found.rmse)}{unit}{said}"),
            ("intervals that hold the truth", f"{found.coverage:.1%}, expected are 95 %"),
        ]
    )
    if query.top is not None:
        say("selecting the largest biases them upwards: fewer intervals may hold the truth")


def _with_truth(query: Query, answer: Answer) -> list[str]:
    truth = answer.truth
    if truth is not None and query.kind != "quantile":
        return [*answer_cells(query, answer), number(round(truth))]
    return [*answer_cells(query, answer), "-" if truth is None else f"{truth:.6g}"]
