"""Estimates as lines of text: a table or JSON, each line as soon as there is one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

from dpstream.pipeline.cli.output import number
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


def begin_cells(job: Job) -> Callable[[int | str], list[str]]:
    """The cell after an epoch's in a table: when it begins; none where no calendar says so.

    Of epoch 0 it is the header, of "" a row that goes on.
    """
    calendar = job.epochs.calendar
    if calendar is None:
        return lambda epoch: []
    return lambda epoch: [calendar.shown(int(epoch)) if epoch else "begins" if epoch == 0 else ""]


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
