"""Differences between published estimates that are a fixed number of epochs apart.

The errors of two estimates are correlated, so a change has its own interval. The interval is
computed from published data only: no other data is read, and no privacy is spent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from dpstream.aggregators.change_errors import ChangeErrors, RetainedErrors
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.results.kinds.known_kinds import kind_of
from dpstream.pipeline.stages.estimate_records import EstimateRecord


class ChangeError(DpstreamError):
    """A job's estimates do not support changes; the message states why."""


def check_changes(job: DeployedJob) -> None:
    """Raise `ChangeError` unless published data determine the intervals of changes."""
    if not kind_of(job.domain).same_items or job.domain.column is not None:
        raise ChangeError(
            f"job {job.name} does not publish the same items at every epoch; changes require a "
            "single count or a list of items"
        )
    if not job.protocol_entry.per_epoch and _errors(job, 1) is None:
        raise ChangeError(
            f"protocol {job.protocol}: the published data do not show how the errors of two epochs "
            "are correlated, so a change has no interval; expected value_stream, shuffled_counts "
            "or a protocol with independent epochs"
        )


def has_changes(job: DeployedJob) -> bool:
    try:
        check_changes(job)
    except ChangeError:
        return False
    return True


class Changes:
    """Differences of estimates `lag` (at least 1) epochs apart, in the order of publication.

    Errors of different horizons are independent, unless devices that start again keep some draws.
    The correlation of two epochs' errors is known only if all earlier epochs of the horizon are
    known.
    """

    def __init__(self, job: DeployedJob, lag: int) -> None:
        check_changes(job)
        self._job, self._lag = job, lag
        self._before: deque[EstimateRecord] = deque(maxlen=lag + 1)
        self._errors: ChangeErrors | None = None
        self._lasting = bool(job.randomizer().lasting)

    def next(self, record: EstimateRecord) -> EstimateRecord | None:
        """Return the next epoch's record with its change in place of its estimate.

        Returns None until `lag` earlier epochs are known. The change is None unless both epochs
        have an estimate.
        """
        if self._before and record.epoch != self._before[-1].epoch + 1:
            self._before.clear()
            self._errors = None
        if not self._before if self._lasting else self._job.epochs.local(record.epoch) == 1:
            self._errors = _errors(self._job, self._lag)
        self._before.append(record)
        deviation = None
        if self._errors is not None:
            deviation = self._errors.next(record.estimate, record.population)
        earlier = self._before[0]
        if len(self._before) <= self._lag:
            return None
        if self._independent(earlier.epoch, record.epoch):
            errors = RetainedErrors(1, kept=0.0)
            errors.next(earlier.estimate, earlier.population)
            deviation = errors.next(record.estimate, record.population)
        before, now = earlier.estimate, record.estimate
        if before is None or now is None or deviation is None:
            return replace(record, estimate=None)
        return replace(record, estimate=now.change_from(before, deviation))

    def _independent(self, earlier: int, later: int) -> bool:
        if self._lasting or self._job.protocol_entry.per_epoch:
            return not self._lasting
        return self._job.epochs.horizon_of(earlier) != self._job.epochs.horizon_of(later)


def changes(
    job: DeployedJob, records: Iterable[EstimateRecord], lag: int
) -> Iterator[EstimateRecord]:
    changes_of_job = Changes(job, lag)
    return (change for record in records if (change := changes_of_job.next(record)) is not None)


def _errors(job: DeployedJob, lag: int) -> ChangeErrors | None:
    return job.protocol_entry.aggregation.changes(job.law, job.parameters, lag)
