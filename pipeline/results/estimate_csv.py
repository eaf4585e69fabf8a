"""Published estimates as CSV: what ``dpstream estimates --format csv`` and the live page give."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from pipeline.results.queries import Query, usual_query
from pipeline.stages.estimate_records import EstimateRecord
from pipeline.values.instants import iso
from pipeline.values.value_domains import ValueDomain

CSV_COLUMNS = (
    "epoch",
    "estimate",
    "standard_deviation",
    "low",
    "high",
    "reports",
    "population",
    "contributors",
    "fate",
    "flags",
    "closed_at",
)


def csv_of_everything(domain: ValueDomain, records: Iterable[EstimateRecord]) -> Iterator[str]:
    """Everything that was published, of a job of any kind: all items, or all buckets of numbers."""
    query = usual_query(domain, everything=True)
    return csv_lines(records) if query is None else answer_csv_lines(query, records)


def csv_lines(records: Iterable[EstimateRecord]) -> Iterator[str]:
    """A header, and a row for every epoch; nothing stands where there is no number."""
    yield ",".join(CSV_COLUMNS)
    for record in records:
        estimate = record.summary
        yield csv_row(
            record.epoch,
            estimate.value,
            estimate.standard_deviation,
            estimate.low,
            estimate.high,
            estimate.reports,
            record.population,
            record.contributors,
            record.fate.value,
            " ".join(estimate.flags),
            iso(record.closed_at),
        )


def answer_csv_lines(query: Query, records: Iterable[EstimateRecord]) -> Iterator[str]:
    """A header, and a row for every answer of every epoch."""
    fitted = ["norm_sub"] if query.norm_sub else []
    columns = ["estimate", "standard_deviation", "low", "high", *fitted]
    yield ",".join(["epoch", query.question.kind, *columns, "population", "fate", "flags"])
    for record in records:
        for answer in query.answers(record.estimate):
            body = answer.to_json()
            cells = (body.get(column) for column in columns)
            about = record.population, record.fate.value, " ".join(record.flags)
            yield csv_row(record.epoch, answer.name, *cells, *about)


def csv_row(*cells: object) -> str:
    """A row; nothing stands for None."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
