"""What has been decided: the manifest log of a deployment, the first manifest of an epoch counting.

The shuffle workers of a job share nothing but this log. Each of them reads it up to what it has
written there, so that all of them go on under the same decision, whoever made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import LogRecord, Steps, record_at
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD, epoch_problem
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.latest_windows import FEW, LatestWindows
from dpstream.topics.frames import CodecError
from dpstream.topics.manifest_rows import ManifestRows, membership_of, read_rows
from dpstream.topics.manifests import (
    DECIDED_FATES,
    Fate,
    Manifest,
    decode_manifest,
    has_bit,
)
from dpstream.topics.names import Role
from dpstream.topics.short_manifests import BASES, ManifestReader, base_of

# A producer that missed this many decided epochs in a row is not waited for until it is back.
PATIENCE = 3
# So many are read together at most: of a longer row few could be remembered. Of a few it is no use.
_ROWS, _FEW_ROWS = 1024, 8


@dataclass(frozen=True, slots=True)
class Decision:
    """A manifest and its offset in the manifest log."""

    manifest: Manifest
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class RememberedDecision:
    """What is remembered of a decision: a bit for each producer, however many devices they have.

    Attributes:
        fate: of the window.
        first_offset: of the epoch's first record in the raw topic.
        cut_offset: first offset that no longer belongs to the window.
        bits: whether each producer is in, in order of registration, lowest bit first; those that
            are not named are not.
    """

    fate: Fate
    first_offset: int
    cut_offset: int
    bits: bytes

    def has(self, index: int) -> bool:
        """Whether a producer was in the window."""
        return has_bit(self.bits, index)

    def inside(self, producers: int) -> NDArray[np.bool_]:
        """Whether each of so many producers was in the window."""
        # Of no bytes at all `np.unpackbits` makes bits of whatever memory held before.
        packed = np.frombuffer(self.bits or b"\0", np.uint8)
        return np.unpackbits(packed, count=producers, bitorder="little").view(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Several decisions in a row, each the first of its epoch.

    Attributes:
        rows: what they say.
        offsets: of the manifests, in their log.
    """

    rows: ManifestRows
    offsets: tuple[int, ...]

    def decision(self, row: int) -> Decision:
        """One of them."""
        return Decision(self.rows.manifest(row), self.offsets[row])


def manifest_reader(job: DeployedJob) -> ManifestReader:
    """Reads the manifests of a deployment."""
    bases = BASES if job.short_manifests else 0
    return ManifestReader(job.fingerprint, job.deployment, bases)


def manifest_at(job: DeployedJob, offset: int) -> Steps[Manifest]:
    """Read a manifest again: of those with many producers only the offsets are kept.

    Args:
        job: the deployed job.
        offset: of the manifest, which a reader of the log has read.
    """
    reader = manifest_reader(job)
    record = yield from record_at(Role.MANIFESTS, 0, offset)
    base = base_of(record.value)
    if base is not None:
        reader.decode(base, (yield from record_at(Role.MANIFESTS, 0, base)).value)
    return reader.decode(offset, record.value)


def own_part(job: DeployedJob, instance: int, record: LogRecord) -> Manifest | None:
    """Read what a further shuffle instance says of its part of a window; None: it says nothing.

    Args:
        job: the deployed job.
        instance: of the shuffle stage, from 2 on; manifests of the first are decisions.
        record: of the manifest log.
    """
    if instance == 1:
        return None
    try:
        manifest = decode_manifest(record.value)
    except CodecError:
        return None
    identity = manifest.deployment, manifest.fingerprint, manifest.instance
    return manifest if identity == (job.deployment, job.fingerprint, instance) else None


class DecisionLog:
    """The decided epochs, who was in lately, and how many devices each producer stands for.

    Manifests of epochs that the job does not have are passed over, and so are those more than
    `EPOCHS_AHEAD` beyond the oldest epoch that no earlier manifest decides: no worker decides so
    far ahead, and what is between is due work for all who read. Every reader passes over the same,
    since what an earlier manifest decides is a matter of the log alone.

    Args:
        job: the deployed job.
        on_decision: is shown every decision.
        on_decisions: is shown several at once in its place, where they are read together.
        after: all epochs up to this one are known to be decided, by records that are not read.
    """

    def __init__(
        self,
        job: DeployedJob,
        on_decision: Callable[[Decision], None] | None = None,
        on_decisions: Callable[[Decisions], None] | None = None,
        *,
        after: int = 0,
    ) -> None:
        self._job = job
        self._identity = (job.deployment, job.fingerprint)
        self._on_decision = on_decision
        self._on_decisions = on_decisions
        # Others have to be kept, or looked for; who is shown one by one reads one by one.
        by_rows = on_decision is None or on_decisions is not None
        self._by_rows = by_rows and not job.short_manifests
        self._reader = manifest_reader(job)
        self._recent: dict[int, RememberedDecision] = {}
        self._order: deque[int] = deque()
        self._inside: Sequence[bool] | None = None
        self._bits = b""
        self._latest = LatestWindows()
        self.first_epoch: int | None = None
        self.decided = EpochSet.up_to(after)

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the manifest log."""
        try:
            manifest = self._reader.decode(record.offset, record.value)
        except CodecError:
            return
        if (manifest.deployment, manifest.fingerprint) != self._identity:
            return
        if manifest.instance > 1:
            # Of several shuffle instances the first one decides.
            return
        if self._out_of_range(manifest) or not self.exists(manifest.epoch):
            return
        if not self.decided.add(manifest.epoch):
            return
        if self.first_epoch is None:
            self.first_epoch = manifest.first_epoch
        decision = Decision(manifest, record.offset)
        self._remember(decision)
        if self._on_decision is not None:
            self._on_decision(decision)

    def apply_all(self, records: Iterable[LogRecord]) -> None:
        """Take in records of the manifest log: the same as `apply` of each, in less time.

        Where reading fails midway, what was read before is taken in all the same.
        """
        unread, more = iter(records), True
        while more:
            part: list[LogRecord] = []
            try:
                part.extend(islice(unread, _ROWS))
            finally:
                more = bool(part)
                for _, alike in groupby(part, lambda record: membership_of(record.value)):
                    self._apply_alike(tuple(alike))

    def _apply_alike(self, records: Sequence[LogRecord]) -> None:
        """Take in records that may be alike; where one stands in the way, the others about it."""
        if not self._by_rows or self.first_epoch is None or len(records) < _FEW_ROWS:
            for record in records:
                self.apply(record)
        elif not self._apply_rows(records):
            middle = len(records) // 2
            self._apply_alike(records[:middle])
            self._apply_alike(records[middle:])

    def _apply_rows(self, records: Sequence[LogRecord]) -> bool:
        """Take in records that all decide, each another epoch; False, and nothing is taken in."""
        assert self.first_epoch is not None
        rows = read_rows([record.value for record in records])
        if rows is None:
            return False
        epochs = np.sort(rows.epochs)
        low, high = int(epochs[0]), int(epochs[-1])
        if epoch_problem(self._job, high) is not None or not self.exists(low):
            return False
        if high > self.decided.first_missing(self.first_epoch) + EPOCHS_AHEAD:
            return False
        if not (np.diff(epochs) > 0).all():
            return False
        if low <= self.decided.highest and any(map(self.decided.__contains__, epochs.tolist())):
            return False
        latest = rows.manifest(int(rows.epochs.argmax()))
        if (latest.deployment, latest.fingerprint) != self._identity:
            return False
        for epoch in epochs.tolist():
            self.decided.add(epoch)
        bits = self._bits_of(latest)
        numbers = rows.epochs, rows.fates, rows.first_offsets, rows.cut_offsets
        offsets = tuple(record.offset for record in records)
        for epoch, fate, first, cut in zip(*(each.tolist() for each in numbers), strict=True):
            self._note(epoch, RememberedDecision(DECIDED_FATES[fate], first, cut, bits))
        # The same are in with all of them.
        self._latest.note(latest)
        if self._on_decisions is not None:
            self._on_decisions(Decisions(rows, offsets))
        return True

    @property
    def whole_manifests(self) -> tuple[int, ...]:
        """Offsets of earlier manifests from which later ones may say differences, rising."""
        return self._reader.bases

    def recall(self, record: LogRecord) -> Manifest:
        """Know an earlier manifest that is decided, and from which others say differences.

        Raises:
            CodecError: it is none.
        """
        return self._reader.decode(record.offset, record.value)

    def encode(self, manifest: Manifest) -> bytes:
        """The record of a decision that follows on what was read.

        One that names an earlier manifest is passed over if too many whole ones come between.
        """
        return self._reader.encode(manifest)

    def _out_of_range(self, manifest: Manifest) -> bool:
        oldest = self.oldest_undecided(manifest.first_epoch)
        return (
            epoch_problem(self._job, manifest.epoch) is not None
            or manifest.epoch > oldest + EPOCHS_AHEAD
        )

    def _remember(self, decision: Decision) -> None:
        manifest = decision.manifest
        bits = self._bits_of(manifest)
        outcome = RememberedDecision(
            manifest.fate, manifest.first_offset, manifest.cut_offset, bits
        )
        self._note(manifest.epoch, outcome)
        self._latest.note(manifest)

    def _bits_of(self, manifest: Manifest) -> bytes:
        if manifest.producers is not self._inside:
            self._inside = manifest.producers if len(manifest.producers) <= FEW else None
            inside = np.asarray(manifest.producers, np.bool_)
            bits = np.packbits(inside, bitorder="little").tobytes()
            # Mostly the same are in: then there is one object for all these decisions.
            self._bits = self._bits if bits == self._bits else bits
        return self._bits

    def _note(self, epoch: int, outcome: RememberedDecision) -> None:
        self._recent[epoch] = outcome
        self._order.append(epoch)
        if len(self._order) > EPOCHS_AHEAD:
            del self._recent[self._order.popleft()]

    def exists(self, epoch: int) -> bool:
        """Whether the deployment has an epoch: the first manifest says with which it begins."""
        return self.first_epoch is None or epoch >= self.first_epoch

    def recent(self, epoch: int) -> RememberedDecision | None:
        """What was decided of an epoch, if it is among the last `EPOCHS_AHEAD` decisions."""
        return self._recent.get(epoch)

    def population(self, index: int) -> int:
        """Devices of a producer, as of the last epoch it was in with; 0 before."""
        populations = self._latest.populations()
        return int(populations[index]) if index < len(populations) else 0

    def last_in(self, index: int) -> int:
        """The latest epoch whose window a producer was in; 0 before the first."""
        epochs = self._latest.epochs()
        return int(epochs[index]) if index < len(epochs) else 0

    def last_in_of(self, producers: int) -> NDArray[np.int64]:
        """`last_in` of each of so many producers."""
        epochs = self._latest.epochs()
        return np.pad(epochs[:producers], (0, max(0, producers - len(epochs))))

    def oldest_undecided(self, roster_first_epoch: int) -> int:
        """The lowest epoch that exists and has no manifest."""
        first = roster_first_epoch if self.first_epoch is None else self.first_epoch
        return self.decided.first_missing(first)

    def missed(self, index: int, first_epoch: int, epoch: int) -> bool:
        """Whether a producer was in none of the last `PATIENCE` decided epochs before `epoch`.

        `first_epoch` is the producer's own: what was decided before it came does not count.
        """
        latest = self.latest_before(epoch)
        return (
            len(latest) == PATIENCE
            and latest[-1][0] >= first_epoch
            and not any(outcome is None or outcome.has(index) for _, outcome in latest)
        )

    def absent(self, epoch: int, first_epochs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`missed` of every producer, whose first epochs are given in order of registration."""
        latest, producers = self.latest_before(epoch), len(first_epochs)
        seen = np.zeros(producers, np.bool_)
        for _, outcome in latest:
            seen |= True if outcome is None else outcome.inside(producers)
        if len(latest) < PATIENCE:
            return np.zeros(producers, np.bool_)
        return ~seen & (first_epochs <= latest[-1][0])

    def latest_before(self, epoch: int) -> tuple[tuple[int, RememberedDecision | None], ...]:
        """The last `PATIENCE` decided epochs before `epoch`, latest first, and what was decided.

        Of what is not remembered everybody is taken to have been in.
        """
        earlier = islice(self.decided.below(epoch), PATIENCE)
        return tuple((each, self._recent.get(each)) for each in earlier)
