"""Estimates as a table or JSON lines, an epoch after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dpstream.pipeline.cli.output import number, say_table
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.json_values import json_text
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain


@dataclass(frozen=True, slots=True)
class EpochTable:
    """A table with a row, or several, for every epoch of a job, and its beginning if it has one.

    A row begins with its epoch, or "" where it continues the one before.

    Attributes:
        job: whose calendar it is.
        columns: headers without those of the epoch, as of `say_table`; in lines a column is at
            least as wide as its header, spaces included.
    """

    job: Job
    columns: Sequence[str]

    def say(self, rows: Iterable[Sequence[str]]) -> None:
        """Print a table as wide as its widest cells."""
        say_table(
            [f">{name[1:].strip()}" if name.startswith(">") else name for name in self._headers],
            self._dated(rows),
        )

    def lines(self, rows: Iterable[Sequence[str]]) -> Iterator[str]:
        """Return lines of text, each as soon as there is a row."""
        names = [name.removeprefix(">") for name in self._headers]
        right = [name.startswith(">") for name in self._headers]
        for row in chain([names], self._dated(rows)):
            cells = zip(row, names, right, strict=True)
            yield " ".join(
                cell.rjust(len(name)) if is_right else cell.ljust(len(name))
                for cell, name, is_right in cells
            ).rstrip()

    @property
    def _headers(self) -> list[str]:
        calendar = self.job.epochs.calendar
        begins = [] if calendar is None else ["begins".ljust(len(calendar.shown(1)))]
        return ["> epoch", *begins, *self.columns]

    def _dated(self, rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        calendar = self.job.epochs.calendar
        for epoch, *cells in rows:
            begins = [] if calendar is None else [calendar.shown(int(epoch)) if epoch else ""]
            yield [epoch, *begins, *cells]


def table_lines(
    records: Iterable[EstimateRecord], job: Job, value: str = "estimate"
) -> Iterator[str]:
    """Columns for people; sd is the standard deviation, low and high bound the 95 % interval."""
    columns = (f">{value:>10}", ">    ± sd", ">  95 % low", ">      high", ">  reports")
    return EpochTable(job, [*columns, ">population", ""]).lines(map(_row, records))


def _row(record: EstimateRecord) -> list[str]:
    one = record.summary
    values = (one.value, one.standard_deviation, one.low, one.high, one.reports, record.population)
    return [str(record.epoch), *map(number, values), ", ".join(record.notes)]


def json_lines(
    records: Iterable[EstimateRecord],
    domain: ValueDomain = BOOLEAN,
    more: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """One object a line, as in the topic, with `more` keys; found items have labels too."""
    for record in records:
        body, estimate = record.to_json(), record.estimate
        if estimate is not None and estimate.found_above is not None:
            body["estimate"]["labels"] = domain.labels(estimate.numbers)
        yield json_text(body | dict(more or {}))
