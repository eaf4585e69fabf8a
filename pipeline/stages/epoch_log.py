"""The epochs of a deployment in order: what was decided, counted and published of each.

Manifests, partials and estimates are kept for ever and have one partition each, so what can be said
of an epoch is a function of three logs, whoever reads them: the publisher as they grow, or anybody
who looks back. Of each log the first complete record of an epoch counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.actions import LogRecord, Run, Steps
from pipeline.errors import DpstreamError
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.stages.decision_log import Decision, DecisionLog, manifest_at
from pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from pipeline.stages.partial_log import PartialLog
from topics.manifests import Fate, Manifest
from topics.names import Role
from topics.partials import spoiled_reason


class LostEpochError(DpstreamError):
    """What a published epoch rests on is gone."""


@dataclass(frozen=True, slots=True)
class DecidedEpoch:
    """What the topics say of an epoch.

    Attributes:
        manifest: the one that counts.
        payload: of its partial; None for a window that was not released.
        estimate: as published; None where only what is decided is read.
    """

    manifest: Manifest
    payload: bytes | None
    estimate: EstimateRecord | None = None

    @property
    def epoch(self) -> int:
        """Of the job."""
        return self.manifest.epoch

    @property
    def spoiled(self) -> str | None:
        """Why the counts of a released window are not known; None if they are, or it was not."""
        return None if self.payload is None else spoiled_reason(self.payload)

    @property
    def counts(self) -> bytes | None:
        """The state of the job's aggregator; None where there are no counts."""
        return None if self.spoiled is not None else self.payload


class EpochLog:
    """Reads what there is of every epoch in step, a few MiB at a time.

    What is held does not grow with the number of epochs. Of manifests that were read and whose turn
    has not come, as little is held as can be, since each may be of ten thousand producers: of what
    lies next in the log its bytes, of what was decided out of turn the offset.

    Args:
        job: as deployed.
        first: the first epoch that is wanted.
        published: whether only published epochs are wanted, with their estimates.

    Attributes:
        next_epoch: the epoch that comes next; None before it is known with which one it begins.
    """

    def __init__(self, job: DeployedJob, first: int = 1, *, published: bool = False) -> None:
        self.next_epoch: int | None = None
        self._job = job
        self._first = first
        self._only_published = published
        self._unread: deque[LogRecord] = deque()
        self._waiting: dict[int, int] = {}
        self._turn: Manifest | None = None
        self._payloads: dict[int, bytes] = {}
        self._estimates: deque[EstimateRecord] = deque()
        self._decisions = DecisionLog(job, self._note)
        self._first_estimates = FirstEstimates(job)
        partials = PartialLog(job, self._payloads.__setitem__, first=first)
        self._manifest_log = job.cursor(Role.MANIFESTS, self._unread.append)
        self._partial_log = job.cursor(Role.PARTIALS, partials.apply)
        self._estimate_log = job.cursor(Role.ESTIMATES, self._note_estimate)

    @property
    def partials_position(self) -> int:
        """The offset at which partials are read on."""
        return self._partial_log.position

    @property
    def partials_wait(self) -> bool:
        """Whether partials have been read whose epoch has not come yet."""
        return bool(self._payloads)

    @property
    def complete(self) -> bool:
        """Whether the last epoch of the job has been read."""
        last, following = self._job.last_epoch, self.next_epoch
        return last is not None and following is not None and following > last

    def read(self, run: Run) -> Iterator[DecidedEpoch]:
        """What there is by now and was not read before; `run` carries the reading out."""
        run(self.find_end())
        while (epoch := run(self.next())) is not None:
            yield epoch

    def find_end(self) -> Steps[None]:
        """See how far the logs go by now: `next` reads up to there."""
        # In this order: an epoch is published after its manifest and partial were written.
        if self._only_published:
            yield from self._estimate_log.find_end()
        yield from self._manifest_log.find_end()
        yield from self._partial_log.find_end()

    def next(self) -> Steps[DecidedEpoch | None]:
        """The next epoch that is wanted; None if it is not there yet.

        Raises:
            LostEpochError: it is published, and what it rests on is gone.
        """
        estimate, wanted = None, self._first
        if self._only_published:
            while not self._estimates:
                if not (yield from self._estimate_log.read_some()):
                    return None
            estimate = self._estimates[0]
            wanted = estimate.epoch
        manifest = yield from self._next_manifest()
        while manifest is not None and manifest.epoch < wanted:
            self._pass_over(manifest.epoch)
            manifest = yield from self._next_manifest()
        if estimate is not None:
            if manifest is None or manifest.epoch != wanted:
                raise LostEpochError(
                    f"epoch {wanted:,} of job {self._job.name} is published, but its manifest or "
                    "partial is gone from the topics, which were to be kept for ever"
                )
            self._estimates.popleft()
        if manifest is None:
            return None
        return DecidedEpoch(manifest, self._pass_over(manifest.epoch), estimate)

    def read_partials(self) -> Steps[None]:
        """Read the partials to their end, as `find_end` found it, also of epochs not wanted."""
        yield from self._partial_log.read()

    def _next_manifest(self) -> Steps[Manifest | None]:
        """The manifest that comes next, once its partial is there if it has one."""
        while True:
            if self._turn is None and self.next_epoch in self._waiting:
                self._turn = yield from manifest_at(self._job, self._waiting[self.next_epoch])
                del self._waiting[self.next_epoch]
            if self._turn is None and self._unread:
                self._decisions.apply(self._unread.popleft())
            elif self._turn is None:
                if not (yield from self._manifest_log.read_some()):
                    return None
            elif not self._lacks_partial(self._turn):
                return self._turn
            elif not (yield from self._partial_log.read_some()):
                return None

    def _lacks_partial(self, manifest: Manifest) -> bool:
        wanted = manifest.fate is Fate.RELEASED and manifest.epoch >= self._first
        return wanted and manifest.epoch not in self._payloads

    def _pass_over(self, epoch: int) -> bytes | None:
        """Go on to the next epoch; returns the payload of this one."""
        self._turn = None
        self.next_epoch = epoch + 1
        return self._payloads.pop(epoch, None)

    def _note(self, decision: Decision) -> None:
        manifest = decision.manifest
        if self.next_epoch is None:
            self.next_epoch = manifest.first_epoch
        if manifest.epoch == self.next_epoch:
            self._turn = manifest
        else:
            self._waiting[manifest.epoch] = decision.offset

    def _note_estimate(self, record: LogRecord) -> None:
        estimate = self._first_estimates.apply(record.value)
        if estimate is not None and estimate.epoch >= self._first:
            self._estimates.append(estimate)
