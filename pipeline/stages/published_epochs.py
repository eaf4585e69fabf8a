"""Where to begin reading the estimates of a deployment, of whoever needs the latest ones alone.

Estimates are published in the order of epochs, and no publisher passes one over: so what is read
near the end of the topic says of all that lies before that it is there. That is seen, and not
taken for granted: where what is read is no unbroken row of epochs, more of the topic is read, and
in the end all of it.
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
class Place:
    """Where to begin.

    Attributes:
        offset: in the topic of estimates.
        before: all epochs up to this one are published by what lies before it; 0: none need be.
    """

    offset: int
    before: int


def place_of_latest(
    job: DeployedJob, wanted: Callable[[int], int], *, after_checkpoint: bool = False
) -> Steps[Place]:
    """Find where to begin.

    Args:
        job: as deployed.
        wanted: the first epoch whose record is needed, given the latest that is published.
        after_checkpoint: whether a checkpoint, too, and the estimate of its epoch, are needed, if
            there is one as near to the end as publishers write them.
    """
    begin = job.start_offset(Role.ESTIMATES)
    end = yield from end_offset(Role.ESTIMATES, 0)
    for start in places_near(begin, end):
        if start == begin:
            break
        row = _Row(job)
        yield from scan(Role.ESTIMATES, 0, start, end, row.take)
        near = not after_checkpoint or row.has_checkpoint or end - start >= checkpoints.NEAR
        if near and row.unbroken and row.first <= wanted(row.last):
            return Place(start, row.first - 1)
    return Place(begin, 0)


def published_before(job: DeployedJob, records: Sequence[LogRecord]) -> int:
    """The last epoch that was published before some records of the topic; 0: there is none.

    Those that lie in the midst of the topic may begin with what a publisher has repeated: what
    counts is the last row of epochs that goes beyond those before it.
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
    """Epochs as they follow on each other in the log; those that repeat earlier ones do no harm."""

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
