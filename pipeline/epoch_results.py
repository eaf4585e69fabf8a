"""What became of every epoch of a deployment: the integers it rests on, and what was published."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from aggregators.published import Published
from pipeline.actions import LogCursor, LogRecord, Steps, end_offset
from pipeline.decisions import Decision
from pipeline.deployed_job import DeployedJob
from pipeline.epoch_counts import NoCountsError
from pipeline.epoch_log import EpochLog
from pipeline.estimate_records import EstimateRecord, FirstEstimates
from topics.manifests import Fate
from topics.names import Role


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The final word on an epoch.

    Attributes:
        epoch: of the job.
        fate: what became of its window.
        contributors: devices in the window.
        population: devices enrolled.
        counts: `Aggregator.to_bytes` of its own reports; None for a window not released.
        estimate: as published.
    """

    epoch: int
    fate: Fate
    contributors: int
    population: int
    counts: bytes | None
    estimate: Published | None


class PublishedLog:
    """Reads the published epochs of a deployment in order, a few at a time, and their sources.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
    """

    def __init__(self, job: DeployedJob, first: int = 1) -> None:
        self._job = job
        self._first = first
        self._published = FirstEstimates(job)
        self._records: deque[EstimateRecord] = deque()
        self._cursor = LogCursor(Role.ESTIMATES, job.start_offset(Role.ESTIMATES), self._take_in)
        self._end = 0
        self._log = EpochLog(job)

    def look(self) -> Steps[None]:
        """See how far the logs go by now: `next` reads up to there."""
        # In this order: an epoch is published after its manifest and partial were written.
        self._end = yield from end_offset(Role.ESTIMATES, 0)
        yield from self._log.look()

    def next(self) -> Steps[tuple[EstimateRecord, Decision, bytes | None] | None]:
        """The next published epoch, its manifest, and the payload of its partial if there is one.

        Returns:
            None if there is no further epoch yet.

        Raises:
            NoCountsError: what it rests on is gone.
        """
        while not self._records:
            if not (yield from self._cursor.read_some(self._end)):
                return None
        record = self._records[0]
        found = yield from self._log.next_decision()
        while found is not None and found[0].manifest.epoch < record.epoch:
            found = yield from self._log.next_decision()
        if found is None or found[0].manifest.epoch != record.epoch:
            raise NoCountsError(
                f"epoch {record.epoch:,} of job {self._job.name} is published, but its manifest or "
                "partial is gone from the topics, which were to be kept for ever"
            )
        self._records.popleft()
        return record, *found

    def _take_in(self, record: LogRecord) -> None:
        published = self._published.apply(record.value)
        if published is not None and published.epoch >= self._first:
            self._records.append(published)


class ResultLog:
    """Reads the results of the published epochs of a deployment in order.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
    """

    def __init__(self, job: DeployedJob, first: int = 1) -> None:
        self._job = job
        self._log = PublishedLog(job, first)

    def look(self) -> Steps[None]:
        """See how far the logs go by now: `next` reads up to there."""
        yield from self._log.look()

    def next(self) -> Steps[EpochResult | None]:
        """The next published epoch; None if there is no further one yet.

        Raises:
            NoCountsError: what it rests on is gone.
        """
        found = yield from self._log.next()
        if found is None:
            return None
        record, _, payload = found
        counts = None if payload is None else self._job.aggregator_from_bytes(payload).to_bytes()
        return EpochResult(
            epoch=record.epoch,
            fate=record.fate,
            contributors=record.contributors,
            population=record.population,
            counts=counts,
            estimate=record.estimate,
        )
