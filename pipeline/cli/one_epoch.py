"""Print one epoch: of a breakdown, all groups with their shares and changes in one table."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Final
from zoneinfo import ZoneInfo

import typer

from dpstream.pipeline.cli.answer_lines import mean_text
from dpstream.pipeline.cli.command_errors import UsageProblem
from dpstream.pipeline.cli.output import number, print_table, print_text
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.results.changes import ChangeError
from dpstream.pipeline.results.counts_queries import Answer
from dpstream.pipeline.results.measure_series import ChosenRows
from dpstream.pipeline.results.periods import Periods
from dpstream.pipeline.results.row_queries import RowsQuery, rows_query
from dpstream.pipeline.stages.estimate_records import EstimateRecord

EpochNumber = Annotated[
    int | None,
    typer.Option(
        "--epoch",
        min=1,
        metavar="E",
        help="Print only this epoch; with --by, all groups with their shares and changes.",
    ),
]
EpochDate = Annotated[
    str | None,
    typer.Option("--date", metavar="DATE", help="As --epoch, by a date in it, such as 2026-07-20."),
]

_TOTAL: Final = "all"


class NoEpochError(DpstreamError):
    """The epoch is not published."""


def chosen_epoch(job: DeployedJob, epoch: int | None, date: str | None) -> int | None:
    """Return the epoch that either option names; None without both."""
    if date is None:
        return epoch
    if epoch is not None:
        raise UsageProblem("--epoch and --date are mutually exclusive")
    calendar = job.epochs.calendar
    if calendar is None:
        raise UsageProblem(f"--date: epochs of job {job.name} have no dates. Use --epoch")
    try:
        moment = datetime.fromisoformat(date)
    except ValueError:
        raise UsageProblem(
            f"--date: got {date!r}; expected a date or time such as 2026-07-20"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=calendar.zone or ZoneInfo("UTC"))
    found = calendar.epoch_of(moment)
    if found < 1:
        raise UsageProblem(
            f"--date: got {date}; expected a date from {calendar.shown(1)} on, when epoch 1 starts"
        )
    return found


def up_to(
    job: DeployedJob, epoch: int, records: Iterable[EstimateRecord]
) -> Iterator[EstimateRecord]:
    """Yield records until that of an epoch; raise `NoEpochError` without one."""
    latest = 0
    for record in records:
        latest = record.epoch
        if latest <= epoch:
            yield record
        if latest >= epoch:
            break
    if latest != epoch:
        known = (
            f"the latest is {epoch_name(job, latest).name}" if latest else "nothing is published"
        )
        raise NoEpochError(
            f"job {job.name} has no estimate {epoch_name(job, epoch).at} (epoch {epoch:,}); {known}"
        )


def only(
    job: DeployedJob, epoch: int, records: Iterable[EstimateRecord]
) -> Iterator[EstimateRecord]:
    yield from deque(up_to(job, epoch, records), maxlen=1)


def print_groups(
    job: DeployedJob, chosen: ChosenRows, epoch: int, records: Iterable[EstimateRecord]
) -> None:
    """Print the rows of an epoch, with the total of the measure as the last row."""
    rows = rows_query(job, chosen)
    if rows is None:
        raise UsageProblem("--by and --where require a job with measures")
    queries = [rows]
    if chosen.by and not chosen.where:
        total = rows_query(job, ChosenRows(rows.rows[0].row.measure, value=chosen.value))
        queries += [] if total is None else [total]
    record, changes = _record_and_changes(job, epoch, records)
    names = [name for name in rows.name_columns if name != "measure"]
    columns = [*(names or ["measure"]), ">estimate", ">95 % interval"]
    columns += [">% of group's users", ">change", ">95 % interval"]
    shown: list[list[str]] = []
    reasons: dict[str, None] = {}
    for query in queries:
        shares = _shares(job, query, record)
        # The errors of sums of cells are correlated over time in a way that is not published.
        changed = () if changes is None or query.sums else query.answers_of(changes)
        for place, answer in enumerate(query.answers_of(record)):
            reasons |= {} if answer.refused is None else {answer.refused: None}
            share = shares.get(answer.name)
            cells = [*_interval(query, answer), "-" if share is None else _percent(share)]
            cells += _interval(query, changed[place] if changed else None, signed=True)
            named = dict(zip(query.name_columns, query.names_of(answer), strict=True))
            labels = [named.get(name) or _TOTAL for name in names] or [answer.name]
            shown.append([*labels, *cells])
    print_text(f"{rows.rows[0].row.measure} {epoch_name(job, epoch).at}", "bold")
    print_table(columns, shown)
    print_text()
    if epoch > 1:
        print_text(f"change: since {epoch_name(job, epoch - 1).name}, with its own interval")
    for reason in reasons:
        print_text(f"-: {reason}")


def _record_and_changes(
    job: DeployedJob, epoch: int, records: Iterable[EstimateRecord]
) -> tuple[EstimateRecord, EstimateRecord | None]:
    """Return the record of an epoch, and the one with its changes, for which all are read."""
    try:
        periods = Periods(job, change=1)
    except ChangeError:
        (record,) = only(job, epoch, records)
        return record, None
    latest = deque[EstimateRecord](maxlen=1)

    def noted() -> Iterator[EstimateRecord]:
        for record in up_to(job, epoch, records):
            latest.append(record)
            yield record

    changes = deque(periods.records(noted()), maxlen=1)
    changed = changes[0] if changes and changes[0].epoch == epoch else None
    return latest[0], None if changed is None or changed.estimate is None else changed


def _shares(job: DeployedJob, query: RowsQuery, record: EstimateRecord) -> dict[str, Answer]:
    """Return shares by the name of their row; means have none."""
    row = query.rows[0].row
    if query.rows[0].statistic == "mean":
        return {}
    shares = rows_query(job, ChosenRows(row.measure, tuple(row.attributes)), shares=True)
    return {} if shares is None else {each.name: each for each in shares.answers_of(record)}


def _percent(share: Answer) -> str:
    return "-" if share.refused is not None else f"{100 * (share.value or 0.0):.1f}"


def _interval(query: RowsQuery, answer: Answer | None, *, signed: bool = False) -> tuple[str, str]:
    """Format a number and its interval; `signed` numbers start with their sign."""
    if answer is None or answer.refused is not None or answer.value is None:
        return "-", "-"
    sign = "+" if signed and answer.value > 0 else ""
    mean, numbers = query.is_mean(answer), (answer.value, answer.ci95_low, answer.ci95_high)
    value, low, high = (mean_text(each, answer) if mean else number(each) for each in numbers)
    return f"{sign}{value}", f"{low} to {high}"
