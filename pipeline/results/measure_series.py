"""Curves of a job with measures, and the choice of one measure and breakdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.measure_rows import MeasureRow, rows_of
from dpstream.pipeline.results.series import VALUE, Series, SeriesError, Unit, short_id

ADDED: Final = ("count", "sum")
"""Types of measures whose means have a total over users."""
NO: Final = "no"
"""Value of rows that count the users whose Boolean answer is no."""


def measure_series(job: Job) -> tuple[Series, ...]:
    """Return a series for each row of a job with measures, totals before breakdowns.

    The result is empty for jobs without measures, and for numbers in buckets of equal width, of
    which quantiles and ranges are published.
    """
    if job.measures is None or job.domain.kind == "numbers":
        return ()
    means = {name for name, measure in job.measures.items() if measure.answer == "mean"}
    single = job.domain.kind == "value"
    return tuple(
        _series(number, row, "value" if row.measure in means else "users", single=single)
        for number, row in enumerate(rows_of(job), start=1)
    )


@dataclass(frozen=True, slots=True)
class MeasuredError:
    """RMSE of a measure's rows with the same attributes, such as "wau by platform".

    Attributes:
        rmse: In users; for a mean, in the unit of its number.
    """

    name: str
    is_mean: bool
    rmse: float


def measured_errors(
    job: Job, found: Iterable[tuple[NDArray[np.integer], NDArray[np.float64]]]
) -> list[MeasuredError]:
    """Return the errors of each measure, for all users and by each breakdown of panels.

    `found` has the numbers of an epoch's published rows, and their errors. Rows of different units
    and groups of different sizes have no common error. The result is empty for jobs without panels.
    """
    if job.domain.columns is None or job.domain.kind != "items":
        return []
    squares = dict[tuple[str, str], list[NDArray[np.float64]]]()
    places = {row.items: (row.measure, ", ".join(row.attributes)) for row in rows_of(job)}
    for numbers, errors in found:
        for number, error in zip(numbers.tolist(), errors, strict=True):
            squares.setdefault(places[number,], []).append(np.square(error))
    means = {name for name, measure in (job.measures or {}).items() if measure.answer == "mean"}
    return [
        MeasuredError(
            " by ".join(filter(None, (measure, attributes))),
            measure in means,
            float(np.sqrt(np.mean(squares[measure, attributes]))),
        )
        for measure, attributes in dict.fromkeys(places.values())
        if (measure, attributes) in squares
    ]


def totals_of(job: Job, series: Iterable[Series]) -> tuple[Series, ...]:
    """Return the totals of the series that are means of numbers of events, or of their sums.

    A total is the mean multiplied by the public number of users that it describes.
    """
    return tuple(
        replace(each, id=f"total{each.id}", label=f"{each.label}, total", total=True)
        for each, row in with_rows(series)
        if each.unit == "value" and (job.measures or {})[row.measure].type in ADDED
    )


def with_rows(series: Iterable[Series]) -> list[tuple[Series, MeasureRow]]:
    """Return the series that have a row, each with it."""
    return [(each, each.row) for each in series if each.row is not None]


def _series(number: int, row: MeasureRow, unit: Unit, *, single: bool) -> Series:
    if len(row.items) > 1:
        return Series(f"m{number}", row.label, unit, items=row.items, row=row)
    (item,) = row.items
    return Series(VALUE.id if single else str(item), row.label, unit, item=item, row=row)


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """A measure, broken down by attributes, for the users with given values of attributes.

    Attributes:
        measure: Name of the measure; empty for the first one of the job.
        by: Names of the attributes whose values distinguish the series; () for one total.
        where: Value by name of the attributes that are the same in all series.
        value: Answer of the measure; empty for all answers except no.
    """

    measure: str = ""
    by: tuple[str, ...] = ()
    where: tuple[tuple[str, str], ...] = ()
    value: str = ""

    @classmethod
    def parse(cls, measure: str, by: str, where: str, value: str = "") -> ChosenRows:
        """Parse names separated by commas, and pairs such as ``plan=pro``.

        >>> ChosenRows.parse("wau", "platform", "plan=pro").where
        (('plan', 'pro'),)
        """
        wanted = {}
        for text in filter(None, where.split(",")):
            name, _, wanted[name] = text.partition("=")
            if not (name and wanted[name]):
                raise SeriesError(f"where: got {short_id(text)}; expected ATTRIBUTE=VALUE")
        names = dict.fromkeys(filter(None, by.split(",")))
        return cls(measure, tuple(names), tuple(wanted.items()), value)

    def __bool__(self) -> bool:
        return self != ChosenRows()

    def of(self, every: Sequence[Series]) -> tuple[Series, ...]:
        """Return the series that match, in their order; raise `SeriesError` if none matches."""
        rows = with_rows(every)
        if not rows:
            raise SeriesError("measure, by and where require a job with measures")
        measures = dict.fromkeys(row.measure for _, row in rows)
        measure = self.measure or next(iter(measures))
        _check("measure", measure, measures)
        rows = [(each, row) for each, row in rows if row.measure == measure]
        names = {*self.by, *dict(self.where)}
        known = dict.fromkeys(",".join(row.attributes) for _, row in rows if row.attributes)
        rows = [(each, row) for each, row in rows if row.attributes.keys() == names]
        if not rows:
            _check("by", ",".join(sorted(names)), known or ("no attribute",))
        for name, value in self.where:
            _check(f"where: {name}", value, dict.fromkeys(row.attributes[name] for _, row in rows))
            rows = [(each, row) for each, row in rows if row.attributes[name] == value]
        if self.value:
            _check("value", self.value, dict.fromkeys(_value(row) for _, row in rows))
        return tuple(
            each
            for each, row in rows
            if (_value(row) == self.value if self.value else row.value != NO)
        )


def _value(row: MeasureRow) -> str:
    return "yes" if row.value is None else row.value


def _check(what: str, given: str, known: Sequence[str] | dict[str, None]) -> None:
    if given not in known:
        listed = "; ".join(known) if what == "by" else ", ".join(known)
        raise SeriesError(f"{what}: got {short_id(given)}; expected one of: {listed}")
