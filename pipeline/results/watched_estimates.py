"""The latest estimate and its change as numbers for Prometheus, made of what is published alone.

Of a job that counts one value it is that one, of a list of at most `MOST_WATCHED` items all of
them, of numbers the median. Of longer lists, and of items that are found, there are none: each item
would be a time series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.workers.worker_facts import PublishedNumber, PublishedNumbers
from dpstream.pipeline.results.changes import Changes, has_changes
from dpstream.pipeline.results.kinds.known_kinds import kind_of
from dpstream.pipeline.results.questions import Answer, Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord

MOST_WATCHED = 20
"""Items of the longest list that is watched."""


class WatchedEstimates:
    """Follows the estimates of a job, epoch by epoch.

    Attributes:
        latest: of the epoch published last; None before the first.

    Args:
        job: as deployed.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        question = kind_of(job.domain).watched(job.domain, MOST_WATCHED)
        self._query = None if question is None else Query(job.domain, question)
        self.start_over()

    @property
    def looks_back(self) -> bool:
        """Whether a change says something only where all epochs of the horizon are known."""
        return self._changes is not None and not self._job.protocol_entry.per_epoch

    def start_over(self) -> None:
        """Know nothing: another worker publishes, or the topic is read again."""
        self.latest: PublishedNumbers | None = None
        self._changes = Changes(self._job, 1) if has_changes(self._job) else None

    def next(self, record: EstimateRecord) -> None:
        """Take in what was published of an epoch; what is no estimate of the job says nothing."""
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
            query.question.label_of(answer),
            answer.value,
            _interval(answer, record),
            None if changed is None else changed.value,
            None if changed is None else _interval(changed, change),
        )


def _interval(answer: Answer, record: EstimateRecord | None) -> tuple[float, float] | None:
    # Of what rests on something that was never received no coverage is claimed.
    gap = record is None or GAP in record.flags
    return None if gap else (answer.low, answer.high)
