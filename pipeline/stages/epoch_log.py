"""The epochs of a deployment in order: what was decided, counted and published of each.

Manifests, partials and estimates are kept for ever and have one partition each, so what can be said
of an epoch is a function of three logs, whoever reads them: the publisher as they grow, or anybody
who looks back. Of each log the first complete record of an epoch counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from dpstream.pipeline.actions import LogCursor, LogRecord, Run, Steps, find_ends, record_at
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.stages.decision_log import Decision, DecisionLog, manifest_at
from dpstream.pipeline.stages.estimate_records import EstimateRecord, FirstEstimates
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Fate, Manifest
from dpstream.topics.names import Role
from dpstream.topics.partials import spoiled_reason


class LostEpochError(DpstreamError):
    """What a published epoch rests on is gone."""


@dataclass(frozen=True, slots=True)
class EpochPlace:
    """Where to go on reading the logs after an epoch, without what lies before.

    Attributes:
        epoch: it, up to which all epochs are decided by the manifests up to its own, and no other.
        first_epoch: of the deployment.
        manifest_offset: where the epoch was decided.
        manifest_digest: SHA-256 of that record.
        whole_manifests: offsets of those from which later ones may say differences.
        partials_offset: before which lies no part of a partial of a later epoch.
    """

    epoch: int
    first_epoch: int
    manifest_offset: int
    manifest_digest: bytes
    whole_manifests: tuple[int, ...]
    partials_offset: int


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
        after: all epochs up to this one are known to be decided, by manifests that are not read.

    Attributes:
        next_epoch: the epoch that comes next; None before it is known with which one it begins.
    """

    def __init__(
        self, job: DeployedJob, first: int = 1, *, published: bool = False, after: int = 0
    ) -> None:
        self.next_epoch: int | None = after + 1 if after else None
        self._job = job
        self._first = first
        self._only_published = published
        self._unread: deque[LogRecord] = deque()
        self._waiting: dict[int, int] = {}
        self._turn: Manifest | None = None
        self._payloads: dict[int, bytes] = {}
        self._estimates: deque[EstimateRecord] = deque()
        self._decisions = DecisionLog(job, self._note, after=after)
        self._first_estimates = FirstEstimates(job)
        self._partials = PartialLog(job, self._payloads.__setitem__, first=first)
        self._manifest_log = job.cursor(Role.MANIFESTS, self._unread.append)
        self._partial_log = job.cursor(Role.PARTIALS, self._partials.apply)
        self._nothing_waited_at = self._partial_log.position
        self._applied: LogRecord | None = None
        self._decided_in_order: tuple[int, LogRecord] | None = None
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
    def logs(self) -> tuple[LogCursor, ...]:
        """Of manifests and partials: `next` reads them up to their ends, as these were found."""
        return self._manifest_log, self._partial_log

    @property
    def complete(self) -> bool:
        """Whether the last epoch of the job has been read."""
        last, following = self._job.last_epoch, self.next_epoch
        return last is not None and following is not None and following > last

    def place(self) -> EpochPlace | None:
        """Where to go on after the epoch that `next` has returned last; None: nowhere else.

        There is a place where epochs were decided in order.
        """
        if self._decided_in_order is None or self.next_epoch is None:
            return None
        epoch, record = self._decided_in_order
        if epoch + 1 != self.next_epoch or self.next_epoch < self._first:
            return None
        return EpochPlace(
            epoch,
            self._decisions.first_epoch or 1,
            record.offset,
            sha256(record.value).digest(),
            self._decisions.whole_manifests,
            self._partials_begin(),
        )

    @classmethod
    def going_on(cls, job: DeployedJob, place: EpochPlace, first: int) -> Steps[Self | None]:
        """What comes after a place; None where the logs do not hold what it says they do.

        Args:
            job: as deployed.
            place: of another reader of the same logs.
            first: the first epoch that is wanted, later than that of the place.
        """
        log = cls(job, first, after=place.epoch)
        manifests, partials = log._manifest_log, log._partial_log
        yield from find_ends(log.logs)
        wanted = sorted({*place.whole_manifests, place.manifest_offset})
        if not manifests.position <= wanted[0] <= wanted[-1] == place.manifest_offset:
            return None
        if place.manifest_offset >= manifests.end or not (
            partials.position <= place.partials_offset <= partials.end
        ):
            return None
        record = yield from record_at(Role.MANIFESTS, 0, place.manifest_offset)
        if sha256(record.value).digest() != place.manifest_digest:
            return None
        try:
            for offset in wanted:
                record = yield from record_at(Role.MANIFESTS, 0, offset)
                manifest = log._decisions.recall(record)
        except CodecError:
            return None
        if (manifest.deployment, manifest.epoch, manifest.first_epoch) != (
            job.deployment,
            place.epoch,
            place.first_epoch,
        ):
            return None
        log._decisions.first_epoch = place.first_epoch
        manifests.position = place.manifest_offset + 1
        partials.position = log._nothing_waited_at = place.partials_offset
        return log

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
        yield from find_ends(self.logs)

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
        while (yield from self._read_partials()):
            pass

    def _read_partials(self) -> Steps[bool]:
        self._nothing_waited_at = self._partials_begin()
        return (yield from self._partial_log.read_some())

    def _partials_begin(self) -> int:
        """Before this offset lies no part of a partial whose epoch has not come yet."""
        waits = bool(self._payloads) or self._partials.has_parts
        return self._nothing_waited_at if waits else self._partial_log.position

    def _next_manifest(self) -> Steps[Manifest | None]:
        """The manifest that comes next, once its partial is there if it has one."""
        while True:
            if self._turn is None and self.next_epoch in self._waiting:
                self._turn = yield from manifest_at(self._job, self._waiting[self.next_epoch])
                del self._waiting[self.next_epoch]
            if self._turn is None and self._unread:
                self._apply(self._unread.popleft())
            elif self._turn is None:
                if not (yield from self._manifest_log.read_some()):
                    return None
            elif not self._lacks_partial(self._turn):
                return self._turn
            elif not (yield from self._read_partials()):
                return None

    def _lacks_partial(self, manifest: Manifest) -> bool:
        wanted = manifest.fate is Fate.RELEASED and manifest.epoch >= self._first
        return wanted and manifest.epoch not in self._payloads

    def _pass_over(self, epoch: int) -> bytes | None:
        self._turn = None
        self.next_epoch = epoch + 1
        return self._payloads.pop(epoch, None)

    def _apply(self, record: LogRecord) -> None:
        self._applied = record
        self._decisions.apply(record)

    def _note(self, decision: Decision) -> None:
        manifest, decided = decision.manifest, self._decisions.decided
        if self.next_epoch is None:
            self.next_epoch = manifest.first_epoch
        before = decided.first_missing(self._decisions.first_epoch or 1)
        in_order = before == manifest.epoch + 1 == decided.highest + 1
        applied = self._applied
        self._decided_in_order = (manifest.epoch, applied) if applied and in_order else None
        if manifest.epoch == self.next_epoch:
            self._turn = manifest
        else:
            self._waiting[manifest.epoch] = decision.offset

    def _note_estimate(self, record: LogRecord) -> None:
        estimate = self._first_estimates.apply(record.value)
        if estimate is not None and estimate.epoch >= self._first:
            self._estimates.append(estimate)
