"""The latest estimate and its change, as numbers for Prometheus, from published data only.

Exports the single count, all items in a list of at most `MOST_WATCHED`, or the median of numbers.
Longer lists and detected items are not exported, because each item would become a time series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.workers.worker_facts import PublishedNumber, PublishedNumbers
from dpstream.pipeline.results.changes import Changes, has_changes
from dpstream.pipeline.results.counts_queries import Answer, Query
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord

MOST_WATCHED = 20
"""Maximum number of items in a list whose estimates are exported."""


class WatchedEstimates:
    """Track the estimates of a job, epoch by epoch.

    `latest` has the numbers of the last published epoch; None before the first epoch.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        counts_query = kind_of(job.domain).watched(job.domain, MOST_WATCHED)
        self._query = None if counts_query is None else Query(job.domain, counts_query)
        self.start_over()

    @property
    def reads_horizon(self) -> bool:
        """True if changes require all earlier epochs of the horizon."""
        return self._changes is not None and not self._job.protocol_entry.per_epoch

    def start_over(self) -> None:
        """Reset: another worker publishes, or the topic is read again."""
        self.latest: PublishedNumbers | None = None
        self._changes = Changes(self._job, 1) if has_changes(self._job) else None

    def next(self, record: EstimateRecord) -> None:
        """Process an epoch's record; an estimate that does not fit the job is not exported."""
        estimate, domain = record.estimate, self._job.domain
        numbers: tuple[PublishedNumber, ...] = ()
        if self._query is not None and (estimate is None or estimate.may_be_of(domain.size - 1)):
            change = None if self._changes is None else self._changes.next(record)
            numbers = tuple(_numbers(self._query, record, change))
        self.latest = PublishedNumbers(record.epoch, numbers)


def _numbers(
    query: Query, record: EstimateRecord, change: EstimateRecord | None
) -> Iterator[PublishedNumber]:
    changes: Mapping[str, Answer] = {}
    if change is not None:
        changes = {answer.name: answer for answer in query.answers(change.estimate)}
    for answer in query.answers(record.estimate):
        changed = changes.get(answer.name)
        yield PublishedNumber(
            query.counts_query.label_of(answer),
            answer.value,
            _interval(answer, record),
            None if changed is None else changed.value,
            None if changed is None else _interval(changed, change),
        )


def _interval(answer: Answer, record: EstimateRecord | None) -> tuple[float, float] | None:
    # No coverage is claimed for results that lack an input.
    gap = record is None or GAP in record.flags
    return None if gap else (answer.ci95_low, answer.ci95_high)
