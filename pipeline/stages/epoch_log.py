"""Read a deployment's epochs in order, each with its decision, counts and published estimate."""

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
from dpstream.topics.manifests import Manifest, WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.partials import corruption_reason


class LostEpochError(DpstreamError):
    pass


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """Offsets at which reading can continue after an epoch, without earlier records.

    Attributes:
        epoch: Last epoch read; the log up to its manifest decides all earlier epochs, and no later
            ones.
        manifest_digest: SHA-256 of the manifest's record.
        whole_manifests: Offsets of manifests that later short manifests can refer to.
        partials_offset: Offset before which no part of any later epoch's partial is stored.
    """

    epoch: int
    first_epoch: int
    manifest_offset: int
    manifest_digest: bytes
    whole_manifests: tuple[int, ...]
    partials_offset: int


@dataclass(frozen=True, slots=True)
class DecidedEpoch:
    """Content of the topics for one epoch; `estimate` is None if only decisions are read."""

    manifest: Manifest
    payload: bytes | None
    estimate: EstimateRecord | None = None

    @property
    def epoch(self) -> int:
        return self.manifest.epoch

    @property
    def corruption(self) -> str | None:
        return None if self.payload is None else corruption_reason(self.payload)

    @property
    def counts(self) -> bytes | None:
        return None if self.corruption is not None else self.payload


class EpochLog:
    """Read manifests, partials and estimates from epoch `first` on, a few MiB at a time.

    If `published`, only published epochs are returned, with their estimates. Manifests that decided
    the epochs up to `after` are not read. A manifest can list ten thousand producers, so pending
    manifests are stored as bytes if they are next in the log, otherwise by offset.
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
        return self._partial_log.position

    @property
    def partials_wait(self) -> bool:
        return bool(self._payloads)

    @property
    def logs(self) -> tuple[LogCursor, ...]:
        """Logs of manifests and partials; `next` reads them up to the ends from `find_end`."""
        return self._manifest_log, self._partial_log

    @property
    def complete(self) -> bool:
        last, following = self._job.last_epoch, self.next_epoch
        return last is not None and following is not None and following > last

    def place(self) -> EpochPosition | None:
        """Return the position after the last epoch read; None if decided out of order."""
        if self._decided_in_order is None or self.next_epoch is None:
            return None
        epoch, record = self._decided_in_order
        if epoch + 1 != self.next_epoch or self.next_epoch < self._first:
            return None
        return EpochPosition(
            epoch,
            self._decisions.first_epoch or 1,
            record.offset,
            sha256(record.value).digest(),
            self._decisions.whole_manifests,
            self._partials_begin(),
        )

    @classmethod
    def resume_at(cls, job: DeployedJob, place: EpochPosition, first: int) -> Steps[Self | None]:
        """Return a log that continues at `place`, or None if the topics contradict `place`."""
        log = cls(job, first, after=place.epoch)
        manifests, partials = log._manifest_log, log._partial_log
        yield from find_ends(log.logs)
        offsets = sorted({*place.whole_manifests, place.manifest_offset})
        if not manifests.position <= offsets[0] <= offsets[-1] == place.manifest_offset:
            return None
        if place.manifest_offset >= manifests.end or not (
            partials.position <= place.partials_offset <= partials.end
        ):
            return None
        record = yield from record_at(Role.MANIFESTS, 0, place.manifest_offset)
        if sha256(record.value).digest() != place.manifest_digest:
            return None
        try:
            for offset in offsets:
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
        run(self.find_end())
        while (epoch := run(self.next())) is not None:
            yield epoch

    def find_end(self) -> Steps[None]:
        """Find the current ends of the logs; `next` reads up to these ends."""
        # The order matters, because an epoch is published after its manifest and partial are
        # written.
        if self._only_published:
            yield from self._estimate_log.find_end()
        yield from find_ends(self.logs)

    def next(self) -> Steps[DecidedEpoch | None]:
        """Return the next requested epoch, or None if it is not available yet.

        Raises `LostEpochError` if the epoch is published but its manifest or partial is missing.
        """
        estimate, offsets = None, self._first
        if self._only_published:
            while not self._estimates:
                if not (yield from self._estimate_log.read_some()):
                    return None
            estimate = self._estimates[0]
            offsets = estimate.epoch
        manifest = yield from self._next_manifest()
        while manifest is not None and manifest.epoch < offsets:
            self._pass_over(manifest.epoch)
            manifest = yield from self._next_manifest()
        if estimate is not None:
            if manifest is None or manifest.epoch != offsets:
                raise LostEpochError(
                    f"epoch {offsets:,} of job {self._job.name} is published, but its manifest "
                    "or partial is missing from topics that must keep all records"
                )
            self._estimates.popleft()
        if manifest is None:
            return None
        return DecidedEpoch(manifest, self._pass_over(manifest.epoch), estimate)

    def read_partials(self) -> Steps[None]:
        """Read all partials up to the end found by `find_end`, even those of unrequested epochs."""
        while (yield from self._read_partials()):
            pass

    def _read_partials(self) -> Steps[bool]:
        self._nothing_waited_at = self._partials_begin()
        return (yield from self._partial_log.read_some())

    def _partials_begin(self) -> int:
        """Return an offset at or before the first partial that `next` has not returned."""
        waits = bool(self._payloads) or self._partials.has_parts
        return self._nothing_waited_at if waits else self._partial_log.position

    def _next_manifest(self) -> Steps[Manifest | None]:
        """Return the next manifest; None while it or the partial it needs is unavailable."""
        while True:
            if self._turn is None and self.next_epoch in self._waiting:
                self._turn = yield from manifest_at(self._job, self._waiting[self.next_epoch])
                del self._waiting[self.next_epoch]
            if self._turn is None and self._unread:
                self._applied = self._unread.popleft()
                self._decisions.apply(self._applied)
            elif self._turn is None:
                if not (yield from self._manifest_log.read_some()):
                    return None
            elif not self._lacks_partial(self._turn):
                return self._turn
            elif not (yield from self._read_partials()):
                return None

    def _lacks_partial(self, manifest: Manifest) -> bool:
        offsets = manifest.window_status is WindowStatus.RELEASED and manifest.epoch >= self._first
        return offsets and manifest.epoch not in self._payloads

    def _pass_over(self, epoch: int) -> bytes | None:
        self._turn = None
        self.next_epoch = epoch + 1
        return self._payloads.pop(epoch, None)

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
