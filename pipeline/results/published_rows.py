"""Published data as a table: one row per epoch and published number.

Columns are the same in CSV, JSON lines, Parquet and pyarrow. An epoch without numbers, such as a
suppressed one, has one row, whose window status is the reason.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TypeAlias

from dpstream.pipeline.devices.ground_truths import GroundTruths
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.results.counts_queries import Answer, Query
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.measure_words import partial_flags
from dpstream.pipeline.results.roll_ups import WindowRecord
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.times import iso_moment, moment_of

Cell: TypeAlias = str | int | float | datetime | tuple[str, ...] | None

_NO_ANSWER = (None,)


@dataclass(frozen=True)
class PublishedRows:
    """Rows of the data that a job publishes.

    Attributes:
        query: Query to answer at every epoch.
        value: Name of the numbers: "estimate", or for derived numbers "change", "smoothed", "mean".
        ground_truths: Ground truth for the last column; None without that column.
        windows: True if records are `WindowRecord`s, which start at an earlier epoch.
    """

    job: DeployedJob
    query: Query
    value: str = "estimate"
    ground_truths: GroundTruths | None = None
    windows: bool = False

    @classmethod
    def of(
        cls,
        job: DeployedJob,
        query: Query | None = None,
        value: str = "estimate",
        ground_truths: GroundTruths | None = None,
        *,
        windows: bool = False,
    ) -> PublishedRows:
        everything = kind_of(job.domain).everything(job.domain)
        return cls(job, query or Query(job.domain, everything), value, ground_truths, windows)

    @property
    def name_column(self) -> str | None:
        """Column that distinguishes an epoch's numbers: "item", "range", "box" or "quantile".

        The result is None if a single value is counted.
        """
        return self.query.column

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return (
            "epoch",
            *(("first_epoch", "averaged_epochs") if self.windows else ()),
            *("start", "end"),
            *self.query.name_columns,
            *(("label",) if self._labeled else ()),
            *(() if self.query.derived is None else ("statistic",)),
            *(self.value, "standard_error", "ci95_low", "ci95_high"),
            *(() if self.query.derived is None else ("refused",)),
            *(("norm_sub",) if self.query.norm_sub else ()),
            *(() if self._averages is None else ("averaged_epochs",)),
            *("reports", "population", "contributors", "window_status", "flags", "assumes_changes"),
            "closed_at",
            *("epsilon", "delta", "privacy_unit"),
            *self._words,
            *(() if self.ground_truths is None else ("ground_truth_not_private",)),
        )

    def rows(self, record: EstimateRecord) -> Iterator[tuple[Cell, ...]]:
        """Yield the rows for an epoch, with cells in the order of `columns`.

        Times are datetimes with a time zone. `start` and `end` are in the job's zone, and None
        without a calendar. `closed_at` is the time when the window was finalized.
        """
        begins, ends = self.spans.span(record.epoch)
        window: tuple[Cell, ...] = ()
        if isinstance(record, WindowRecord):
            window = record.first_epoch, record.averaged
            begins, _ = self.spans.span(record.first_epoch)
        estimate, guarantee = record.estimate, record.guarantee
        about: tuple[Cell, ...] = (
            *(() if self._averages is None else (None if estimate is None else estimate.averaged,)),
            0 if estimate is None else estimate.reports,
            *(record.population, record.contributors, record.window_status.value),
        )
        more: tuple[Cell, ...] = (
            record.assumes_changes,
            moment_of(record.closed_at),
            *(guarantee.get(name) for name in ("epsilon", "delta", "unit")),
            *self._words.values(),
        )
        ground_truth = (
            None
            if self.ground_truths is None
            else self.ground_truths.known(record.epoch, record.estimate)
        )
        shared = record.flags
        if self.job.domain.kind != "items":
            shared += partial_flags(self.job, self.job.measures or (), record)
        for answer in self.query.answers_of(record, ground_truth) or _NO_ANSWER:
            known = None if answer is None else answer.ground_truth
            true = () if self.ground_truths is None else (known,)
            flags = shared if answer is None else (*shared, *answer.flags)
            numbers = (*self._cells(answer), *about, flags, *more, *true)
            yield (record.epoch, *window, begins, ends, *numbers)

    def csv_lines(self, records: Iterable[EstimateRecord]) -> Iterator[str]:
        """Yield a header and the rows for every epoch; missing numbers are empty.

        Times are in ISO 8601 with a time zone; flags are separated by spaces.
        """
        yield ",".join(self.columns)
        for record in records:
            for row in self.rows(record):
                cells = self.texts(row)
                yield csv_row(
                    *(" ".join(cell) if isinstance(cell, tuple) else cell for cell in cells)
                )

    def texts(self, row: Sequence[Cell]) -> Iterator[Cell]:
        """Yield the cells of a row; times are ISO 8601 texts with a zone."""
        for name, cell in zip(self.columns, row, strict=True):
            if isinstance(cell, datetime):
                yield iso_moment(cell, "milliseconds" if name == "closed_at" else "auto")
            else:
                yield cell

    def _cells(self, answer: Answer | None) -> Iterator[Cell]:
        columns = self.query.name_columns
        yield from (None,) * len(columns) if answer is None else self.query.names_of(answer)
        if self._labeled:
            counted = "" if self.name_column is None or answer is None else answer.name
            yield None if answer is None else self.job.shown_as(counted)["label"]
        if self.query.derived is not None:
            yield None if answer is None else self.query.statistic_of(answer)
        numbers: tuple[Cell, ...] = (None,) * 4
        if answer is not None and answer.refused is None:
            numbers = answer.value, answer.standard_error, answer.ci95_low, answer.ci95_high
        yield from numbers
        if self.query.derived is not None:
            yield None if answer is None else answer.refused
        if self.query.norm_sub:
            yield None if answer is None else answer.norm_sub

    @property
    def _labeled(self) -> bool:
        return bool(self.job.labels) and self.name_column in (None, "item")

    @cached_property
    def _averages(self) -> int | None:
        return self.job.added_epochs

    @cached_property
    def _words(self) -> dict[str, str]:
        return self.job.given_texts("title", "unit")

    @cached_property
    def spans(self) -> EpochSpans:
        return EpochSpans(self.job)


def csv_row(*cells: object) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
