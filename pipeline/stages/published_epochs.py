"""Find the offset from which to read a deployment's latest estimates.

Estimates are published in the order of epochs, without gaps. Consecutive epochs near the end of the
topic therefore prove that all earlier epochs are published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpstream.pipeline.actions import LogRecord, Steps, end_offset, places_near, scan
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages import checkpoints
from dpstream.pipeline.stages.checkpoints import own_checkpoint
from dpstream.pipeline.stages.estimate_records import FirstEstimates, own_estimate
from dpstream.topics.names import Role


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Offset in the topic of estimates; all epochs up to `before` are published before it."""

    offset: int
    before: int


def place_of_latest(
    job: DeployedJob, first_needed: Callable[[int], int], *, after_checkpoint: bool = False
) -> Steps[ReadPosition]:
    """Find the offset from which to read estimates.

    `first_needed` maps the latest published epoch to the first epoch whose record is needed. With
    `after_checkpoint`, the records from the offset include a checkpoint and the estimate of its
    epoch, if there is a checkpoint among the last `checkpoints.NEAR` records.
    """
    begin = job.start_offset(Role.ESTIMATES)
    end = yield from end_offset(Role.ESTIMATES, 0)
    for start in places_near(begin, end):
        if start == begin:
            break
        row = _Row(job)
        yield from scan(Role.ESTIMATES, 0, start, end, row.take)
        near = not after_checkpoint or row.has_checkpoint or end - start >= checkpoints.NEAR
        if near and row.unbroken and row.first <= first_needed(row.last):
            return ReadPosition(start, row.first - 1)
    return ReadPosition(begin, 0)


def published_before(job: DeployedJob, records: Sequence[LogRecord]) -> int:
    """Return the last epoch published before the given records of the topic, or 0.

    The records can start with epochs that a publisher has repeated; only the last run of
    consecutive epochs counts.
    """
    if not records or records[0].offset <= job.start_offset(Role.ESTIMATES):
        return 0
    first = latest = 0
    for record in records:
        estimate = own_estimate(job, record.value)
        if estimate is not None and estimate.epoch > latest:
            first = estimate.epoch if estimate.epoch > latest + 1 else first
            latest = estimate.epoch
    return max(0, first - 1)


class _Row:
    """Consecutive epochs in the log; repeated epochs are ignored."""

    def __init__(self, job: DeployedJob) -> None:
        self._estimates = FirstEstimates(job)
        self._job = job
        self._whole = True
        self.first = self.last = 0
        self.has_checkpoint = False

    @property
    def unbroken(self) -> bool:
        return self._whole and self.first > 0

    def take(self, record: LogRecord) -> None:
        estimate = self._estimates.apply(record.value)
        if estimate is None:
            checkpoint = own_checkpoint(self._job, record.key, record.value)
            if checkpoint is not None:
                self.has_checkpoint |= 0 < self.first <= checkpoint.epoch
            return
        self._whole &= self.first == 0 or estimate.epoch == self.last + 1
        self.first, self.last = self.first or estimate.epoch, estimate.epoch
