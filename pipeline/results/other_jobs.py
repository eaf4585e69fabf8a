"""Ratios with a measure of another job, such as ``shop``'s buyers per active user of ``app``.

The two jobs' devices draw their noise independently, so the covariance of the errors is 0. Epochs
are matched by time: the jobs can have started at different epochs of one calendar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.results.counts_queries import Items
from dpstream.pipeline.results.derived_queries import PairQuery, item_covariances
from dpstream.pipeline.results.epoch_cells import Side, epoch_cells
from dpstream.pipeline.results.measure_rows import MeasureRow, measures_of_items
from dpstream.pipeline.results.measure_series import ChosenRows, measure_series, with_rows
from dpstream.pipeline.results.measure_words import partial_flags
from dpstream.pipeline.results.pairs import Pair, group_text
from dpstream.pipeline.results.periods import Periods
from dpstream.pipeline.results.ratios import Amount, DerivedNumber, quantile_of, ratio
from dpstream.pipeline.results.series import SeriesError
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError

_MOST_COMPARED = 13
"""Number of epochs whose starts are compared: those of months from any day differ within a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherJobQuery(PairQuery):
    """Query for ratios whose denominators are numbers of another job.

    Attributes:
        other: The other job.
        divisor: Measure of the other job; empty for its single count.
        offset: Number to add to an epoch of this job for the other job's epoch at the same time.
        records: The other job's records by epoch.
    """

    other: DeployedJob
    divisor: str
    offset: int
    records: Mapping[int, EstimateRecord] = field(default_factory=dict)

    @property
    def own_items(self) -> tuple[int, ...]:
        return tuple(item for pair in self.pairs for item in pair.first.items)

    def reading(self, records: Iterable[EstimateRecord], periods: Periods) -> OtherJobQuery:
        """Return the query with the other job's records, in the same periods as this job's.

        Raises `QueryError` if periods of the two jobs start at different epochs.
        """
        if self.offset % (periods.interval or 1):
            raise QueryError(
                f"--interval: periods of {periods.interval} epochs of job {self.other.name} start "
                "at other times, because it starts at another epoch. Remove --interval"
            )
        measures = (self.divisor,) if self.divisor else ()
        same = replace(periods, job=self.other, measures=measures)
        return replace(self, records={record.epoch: record for record in same.records(records)})

    def _flags(self, record: EstimateRecord, pair: Pair) -> tuple[str, ...]:
        assert self.job is not None
        names = measures_of_items(self.job, pair.first.items)
        same_time = self.records.get(record.epoch + self.offset)
        found = partial_flags(self.job, names, record)
        if same_time is not None:
            found += partial_flags(self.other, (self.divisor,), same_time)
        return tuple(dict.fromkeys(found))

    def _found(
        self, record: EstimateRecord
    ) -> Iterator[tuple[Pair, DerivedNumber, tuple[DerivedNumber, DerivedNumber]]]:
        assert self.job is not None
        if record.estimate is None:
            return
        same_time = self.records.get(record.epoch + self.offset)
        nothing = DerivedNumber(), DerivedNumber()
        quantile = quantile_of(len(self.pairs) if self.simultaneous else 1)
        for pair in self.pairs:
            first = _amount(self.job, record, pair.first)
            second = _amount(self.other, same_time, pair.second)
            refused = next((each for each in (first, second) if isinstance(each, str)), None)
            if refused is not None or isinstance(first, str) or isinstance(second, str):
                yield pair, DerivedNumber(refused=refused), nothing
            else:
                yield pair, ratio(first, second, quantile=quantile), nothing


def other_job_query(
    job: DeployedJob,
    chosen: ChosenRows,
    other: DeployedJob,
    measure: str,
    *,
    simultaneous: bool = False,
) -> OtherJobQuery:
    """Return the query for the ratios of the chosen rows to a measure of another job.

    `measure` is empty for the other job's first measure. Raises `QueryError` if the jobs have
    different people, calendars or groups, or no such rows.
    """
    if job.population_name != other.population_name:
        raise QueryError(
            f"--per: job {job.name} is about population {job.population_name}, and job "
            f"{other.name} about population {other.population_name}. A ratio requires the same "
            "people: declare the same 'population' in both job files"
        )
    offset = _offset(job, other)
    try:
        rows, others = _rows(job, chosen), _rows(other, None)
    except SeriesError as error:
        raise QueryError(f"--{error}") from None
    names = dict.fromkeys(name for name, _, _ in others)
    wanted = measure or next(iter(names))
    if wanted not in names:
        raise QueryError(
            f"--per: job {other.name} has no measure {wanted!r}; expected one of: "
            f"{', '.join(filter(None, names)) or 'none, because it has one count'}"
        )
    for attribute in dict.fromkeys(name for _, attributes, _ in rows for name in attributes):
        _check_same_groups(job, other, attribute)
    of_group = {group_text(group): side for name, group, side in others if name == wanted}
    pairs, per = [], f"{other.name}:{wanted}" if wanted else other.name
    for name, attributes, side in rows:
        group = group_text(attributes)
        if group not in of_group:
            raise QueryError(
                f"--per: job {other.name} has no breakdown of {wanted or 'its count'} by "
                f"{', '.join(attributes)}. Remove --by and --where"
            )
        text = f"{name or job.name}/{per}"
        pairs.append(Pair(f"{text}: {group}" if group else text, side, of_group[group]))
    return OtherJobQuery(
        job.domain,
        Items(),
        job=job,
        pairs=tuple(pairs),
        simultaneous=simultaneous,
        other=other,
        divisor=wanted.partition("=")[0],
        offset=offset,
    )


def _rows(job: DeployedJob, chosen: ChosenRows | None) -> list[tuple[str, Mapping[str, str], Side]]:
    """Return the name, attributes and items of each row, by default of all; "" names a count."""
    series = measure_series(job)
    if not series and job.domain.kind == "value" and not chosen:
        return [("", {}, Side(job.name, (1,)))]
    if not series:
        raise QueryError(
            f"--per: job {job.name} has neither measures nor a single count; use --ratio for two "
            "of its items"
        )
    rows = with_rows(series if chosen is None else chosen.of(series))
    return [(_name(row), row.attributes, Side(row.label, row.items)) for _, row in rows]


def _name(row: MeasureRow) -> str:
    return row.measure if row.value is None else f"{row.measure}={row.value}"


def _amount(job: DeployedJob, record: EstimateRecord | None, side: Side) -> Amount | str:
    """Return a number at an epoch, or why it is missing."""
    if record is None or record.estimate is None:
        return f"job {job.name} has no estimate at this time"
    if job.domain.kind == "value":
        found = record.summary
        if found.value is None or found.standard_error is None:
            return f"job {job.name} has no estimate at this time"
        return Amount(found.value, found.standard_error**2)
    cells = epoch_cells(job, record, side.items, item_covariances(job, "--per"))
    if cells is None:
        return f"job {job.name} has no estimate at this time"
    return cells.missing(side.items) or cells.amount(side.items)


def _offset(job: DeployedJob, other: DeployedJob) -> int:
    """Return the number to add to an epoch for the other job's epoch at the same time."""
    calendars = job.epochs.calendar, other.epochs.calendar
    first, second = calendars
    if first is None or second is None:
        without = job if first is None else other
        raise QueryError(
            f"--per: job {without.name} has no calendar, so its epochs have no times to compare; "
            "expected epochs.start and epochs.length in both job files"
        )
    for name, one, two in (
        ("length", str(first.length), str(second.length)),
        ("timezone", _zone(job), _zone(other)),
    ):
        if one != two:
            raise QueryError(
                f"--per: epochs.{name} is {one} in job {job.name} and {two} in job {other.name}; "
                "expected jobs with the same epochs"
            )
    since = max(first.start, second.start)
    own, others = first.epoch_of(since), second.epoch_of(since)
    for each in range(_MOST_COMPARED):
        if first.start_of(own + each) != second.start_of(others + each):
            raise QueryError(
                f"--per: epochs of job {job.name} start at other times than those of job "
                f"{other.name}, such as {first.shown(own)} and {second.shown(others)}; expected "
                "jobs with the same epochs"
            )
    return others - own


def _zone(job: Job) -> str:
    return job.epochs.timezone or "UTC"


def _check_same_groups(job: DeployedJob, other: DeployedJob, attribute: str) -> None:
    if attribute not in (other.attributes or {}):
        raise QueryError(
            f"--per: job {other.name} has no attribute {attribute}. Remove --by and --where"
        )
    one, two = (
        {*each.all_values_of(attribute), "public" if keys.public else "private"}
        for each in (job, other)
        for keys in [(each.attributes or {})[attribute]]
    )
    if one != two:
        different = ", ".join(sorted(one ^ two))
        raise QueryError(
            f"--per: attribute {attribute} differs between job {job.name} and job {other.name} "
            f"({different}). Remove --by and --where"
        )
