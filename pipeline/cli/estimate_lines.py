"""Estimates as lines of text: a table or JSON, each line as soon as there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from dpstream.pipeline.cli.output import number, say_table
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain

# Made once: `json.dumps` makes one for every line.
_WRITER = json.JSONEncoder(allow_nan=False)
_TABLE = "{:>10} {:>8} {:>10} {:>10} {:>9} {:>10} {}"


def epoch_cells(job: Job | None) -> Callable[[int], str]:
    """The first cells of a row: an epoch, and when it begins where the job's calendar says so.

    They are as wide as their header, which is that of epoch 0.
    """
    calendar = None if job is None else job.epochs.calendar
    if calendar is None:
        return lambda epoch: f"{epoch or 'epoch':>6}"
    width = len(calendar.shown(1))

    def cells(epoch: int) -> str:
        if not epoch:
            return f"{'epoch':>6} {'begins':<{width}}"
        return f"{epoch:>6} {calendar.shown(epoch):<{width}}"

    return cells


def say_epoch_table(job: Job, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column is the epoch, with its beginning where a calendar says it.

    Args:
        job: whose calendar it is.
        columns: without those of the epoch.
        rows: with the epoch first, or "" in a row that continues it.
    """
    calendar = job.epochs.calendar
    if calendar is None:
        say_table([">epoch", *columns], rows)
        return
    say_table(
        [">epoch", "begins", *columns],
        ([epoch, calendar.shown(int(epoch)) if epoch else "", *row] for epoch, *row in rows),
    )


def table_lines(records: Iterable[EstimateRecord], job: Job | None = None) -> Iterator[str]:
    """Columns for people; sd is the standard deviation, low and high bound the 95 % interval."""
    cells = epoch_cells(job)
    header = "estimate", "± sd", "95 % low", "high", "reports", "population", ""
    yield f"{cells(0)} {_TABLE.format(*header)}".rstrip()
    for record in records:
        estimate = record.summary
        values = (estimate.value, estimate.standard_deviation, estimate.low, estimate.high)
        line = _TABLE.format(
            *map(number, values),
            number(estimate.reports),
            number(record.population),
            ", ".join(record.notes),
        )
        yield f"{cells(record.epoch)} {line}".rstrip()


def json_lines(records: Iterable[EstimateRecord], domain: ValueDomain = BOOLEAN) -> Iterator[str]:
    """One object a line, as in the topic; items that were found have labels too."""
    for record in records:
        body, estimate = record.to_json(), record.estimate
        if estimate is not None and estimate.found_above is not None:
            body["estimate"]["labels"] = domain.labels(estimate.numbers)
        yield _WRITER.encode(body)
