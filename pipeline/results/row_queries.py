"""Rows of a job with measures: numbers, means or shares of all users and of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_covariances import ItemCovariances
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.counts_queries import Answer, Items, Query
from dpstream.pipeline.results.derived_queries import PairQuery, answer_of, item_covariances
from dpstream.pipeline.results.epoch_cells import Side, epoch_cells
from dpstream.pipeline.results.measure_rows import MeasureRow, measures_of_items
from dpstream.pipeline.results.measure_series import (
    NO,
    ChosenRows,
    measure_series,
    totals_of,
    with_rows,
)
from dpstream.pipeline.results.measure_words import partial_flags
from dpstream.pipeline.results.ratios import DerivedNumber, quantile_of
from dpstream.pipeline.results.series import Series, SeriesError
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError

Statistic = Literal["count", "mean", "share", "total"]


@dataclass(frozen=True, slots=True)
class ShownRow:
    row: MeasureRow
    side: Side
    statistic: Statistic


@dataclass(frozen=True, slots=True)
class RowsQuery(Query):
    """Query for rows of a job with measures; the item of an answer is the number of its row.

    `covariances` are those of the errors of items; None for a job with panels. If `simultaneous`,
    all intervals of an epoch hold together with 95 % probability.
    """

    job: DeployedJob | None = None
    rows: tuple[ShownRow, ...] = ()
    covariances: ItemCovariances | None = None
    simultaneous: bool = False

    derived: ClassVar[str] = "row"

    @property
    def percent(self) -> bool:
        return any(each.statistic == "share" for each in self.rows)

    @property
    def sums(self) -> bool:
        return any(len(each.side.items) > 1 for each in self.rows)

    @property
    def column(self) -> str:
        return "measure"

    @property
    def names(self) -> list[str]:
        return [each.row.label for each in self.rows]

    @property
    def name_columns(self) -> tuple[str, ...]:
        attributes = dict.fromkeys(name for each in self.rows for name in each.row.attributes)
        values = any(each.row.value is not None for each in self.rows)
        return ("measure", *(("value",) if values else ()), *attributes)

    def names_of(self, answer: Answer) -> tuple[str | None, ...]:
        row = self.rows[answer.item - 1].row
        about = {"measure": row.measure, "value": row.value, **row.attributes}
        return tuple(about.get(name) for name in self.name_columns)

    def is_mean(self, answer: Answer) -> bool:
        return self.statistic_of(answer) == "mean"

    def statistic_of(self, answer: Answer) -> str:
        return self.rows[answer.item - 1].statistic

    def to_json(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> Mapping[str, Any]:
        rows = []
        for answer in self.answers_of(record):
            names = zip(self.name_columns, self.names_of(answer), strict=True)
            named = {name: value for name, value in names if value is not None}
            numbers = {key: value for key, value in answer.to_json().items() if key != "name"}
            rows.append({**named, "statistic": self.statistic_of(answer), **numbers})
        return {
            "epoch": record.epoch,
            "window_status": record.window_status,
            "population": record.population,
            "flags": record.flags,
            "rows": rows,
        }

    def answers_of(
        self, record: EstimateRecord, ground_truth: NDArray[np.integer] | None = None
    ) -> tuple[Answer, ...]:
        assert self.job is not None
        items = [item for each in self.rows for item in (*each.side.items, *each.side.whole)]
        cells = epoch_cells(self.job, record, items, self.covariances)
        if cells is None:
            return ()
        quantile = quantile_of(len(self.rows) if self.simultaneous else 1)
        found = []
        for number, each in enumerate(self.rows, start=1):
            if cells.hides(each.side.items):
                continue
            reason = cells.missing(each.side.items)
            if reason is not None:
                shown = DerivedNumber(refused=reason)
            elif each.statistic in ("count", "total"):
                # The amount of a mean is its total over users.
                amount = cells.amount(each.side.items)
                shown = DerivedNumber.around(amount.value, amount.deviation, quantile)
            else:
                # The share of a mean's sum is the mean.
                shown = cells.share(each.side, quantile)
                shown = shown.within(0.0, 1.0) if each.statistic == "share" else shown
            flags = (*shown.flags, *partial_flags(self.job, (each.row.measure,), record))
            found.append(answer_of(each.row.label, replace(shown, flags=flags), number))
        return tuple(found)


def rows_query(
    job: DeployedJob,
    chosen: ChosenRows,
    *,
    every: bool = False,
    shares: bool = False,
    totals: bool = False,
    simultaneous: bool = False,
) -> RowsQuery | None:
    """Return the query for the chosen rows, by default those of all users; with `every`, all rows.

    With `shares`, only shares of users are shown; with `totals`, only totals over users. The result
    is None for a job without items of measures. Raises `QueryError` if no row matches, and if the
    published data do not determine sums of items.
    """
    series: tuple[Series, ...] = measure_series(job)
    if chosen:
        try:
            series = chosen.of(series)
        except SeriesError as error:
            raise QueryError(f"--{error}") from None
    if totals:
        series = totals_of(job, series)
        if not series:
            raise QueryError(
                "--total requires a measure of type count or sum with 'mean': only such numbers "
                "have a total over users"
            )
    if job.domain.kind != "items" or not series:
        return None
    rows = []
    for each, row in with_rows(series):
        statistic: Statistic = "share" if shares else "count"
        if each.unit == "value":
            statistic = "total" if totals else "mean"
        wanted = bool(chosen) or (row.value != NO and (every or not row.attributes))
        if wanted and not (shares and statistic == "mean"):
            rows.append(ShownRow(row, Side(row.label, row.items, row.whole), statistic))
    if not rows:
        raise QueryError("--share requires a measure that counts users; this one is a mean")
    covariances = item_covariances(job, "--share" if shares else "--by")
    return RowsQuery(
        job.domain,
        Items(),
        job=job,
        rows=tuple(rows),
        covariances=covariances,
        simultaneous=simultaneous,
    )


def measures_of(job: DeployedJob, query: Query) -> tuple[str, ...]:
    """Return the measures that a query shows; () if it is not about measures."""
    if isinstance(query, RowsQuery):
        return tuple(dict.fromkeys(each.row.measure for each in query.rows))
    if isinstance(query, PairQuery):
        return measures_of_items(job, query.own_items)
    return ()
