"""The latest estimate and its change, as numbers for Prometheus, from published data only.

Exports the single count, all items in a list of at most `MOST_WATCHED`, or the median of numbers.
Longer lists and detected items are not exported, because each item would become a time series.

Of a job with measures, it exports totals, then breakdowns in the order of the job file, and then
their changes. Each is exported only as a whole, and only if the job then has at most `MOST_METRICS`
time series. Ratios that the job file declares are exported for all users.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.workers.worker_facts import PublishedNumber, PublishedNumbers
from dpstream.pipeline.results.changes import Changes, has_changes
from dpstream.pipeline.results.counts_queries import Answer, Query
from dpstream.pipeline.results.derived_queries import declared_ratios
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.measure_series import measure_series, with_rows
from dpstream.pipeline.results.series import NO_QUANTILES, Series, triples_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord

MOST_WATCHED = 20
"""Maximum number of items in a list whose estimates are exported."""
MOST_METRICS = 200
"""Maximum number of time series of estimates of a job with measures."""


class WatchedEstimates:
    """Track a job epoch by epoch; `latest` has the numbers of the last published epoch."""

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        counts_query = kind_of(job.domain).watched(job.domain, MOST_WATCHED)
        self._query = None if counts_query is None else Query(job.domain, counts_query)
        # An estimate and its interval are three time series, and so is a change.
        self._series = _whole(measure_series(job), MOST_METRICS // 3)
        self._changing = _whole(self._series, MOST_METRICS // 3 - len(self._series))
        self._ratios = declared_ratios(job)
        self.start_over()

    @property
    def reads_horizon(self) -> bool:
        return self._changes is not None and not self._job.protocol_entry.per_epoch

    def start_over(self) -> None:
        self.latest: PublishedNumbers | None = None
        self._changes = Changes(self._job, 1) if has_changes(self._job) else None

    def next(self, record: EstimateRecord) -> None:
        """Process an epoch's record; an estimate that does not fit the job is not exported."""
        estimate, domain = record.estimate, self._job.domain
        numbers: Iterator[PublishedNumber] = iter(())
        if estimate is None or estimate.may_be_of(domain.size - 1):
            change = None if self._changes is None else self._changes.next(record)
            if self._series:
                numbers = _rows(self._series, self._changing, record, change)
            elif self._query is not None:
                numbers = _numbers(self._query, record, change)
        ratios = () if self._ratios is None else tuple(_totals(self._ratios, record))
        self.latest = PublishedNumbers(record.epoch, tuple(numbers), ratios)


def _whole(series: Sequence[Series], most: int) -> tuple[Series, ...]:
    found: list[Series] = []
    for names in dict.fromkeys(tuple(row.attributes) for _, row in with_rows(series)):
        more = [each for each, row in with_rows(series) if tuple(row.attributes) == names]
        if len(found) + len(more) <= most:
            found += more
    return tuple(found)


def _totals(ratios: Query, record: EstimateRecord) -> Iterator[PublishedNumber]:
    for answer in ratios.answers_of(record):
        if answer.refused is None and ": " not in answer.name:
            yield PublishedNumber({"ratio": answer.name}, answer.value, _interval(answer, record))


def _rows(
    series: Sequence[Series],
    changing: Sequence[Series],
    record: EstimateRecord,
    change: EstimateRecord | None,
) -> Iterator[PublishedNumber]:
    if record.estimate is None:
        return
    triples = triples_of(series, record.estimate, NO_QUANTILES, gaps=True)
    changed = None if change is None else change.estimate
    changes = triples_of(series, changed, NO_QUANTILES)
    both = zip(with_rows(series), triples.tolist(), changes.tolist(), strict=True)
    for (each, row), (value, low, high), (difference, below, above) in both:
        if math.isfinite(value):
            labels = {"measure": row.measure, **row.attributes}
            if row.attributes:
                labels["by"] = ",".join(row.attributes)
            if row.value is not None:
                labels["value"] = row.value
            interval = None if GAP in record.flags else (low, high)
            number = PublishedNumber(labels, value, interval)
            if math.isfinite(difference) and each in changing:
                number = replace(number, change=difference, change_interval=(below, above))
            yield number


def _numbers(
    query: Query, record: EstimateRecord, change: EstimateRecord | None
) -> Iterator[PublishedNumber]:
    changes: Mapping[str, Answer] = {}
    if change is not None:
        changes = {answer.name: answer for answer in query.answers(change.estimate)}
    for answer in query.answers(record.estimate):
        changed = changes.get(answer.name)
        yield PublishedNumber(
            {"item": query.counts_query.label_of(answer)},
            answer.value,
            _interval(answer, record),
            None if changed is None else changed.value,
            None if changed is None else _interval(changed, change),
        )


def _interval(answer: Answer, record: EstimateRecord | None) -> tuple[float, float] | None:
    # No coverage is claimed for results that lack an input.
    gap = record is None or GAP in record.flags
    return None if gap else (answer.ci95_low, answer.ci95_high)
