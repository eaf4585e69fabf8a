"""Read the manifest log of a deployment; the first manifest of an epoch counts.

The shuffler workers of a job share only this log, and continue under the same decisions.
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
from dpstream.topics.frames import CodecError
from dpstream.topics.manifest_rows import ManifestRows, membership_of, read_rows
from dpstream.topics.manifests import (
    MANIFEST_STATUSES,
    Manifest,
    WindowStatus,
    decode_manifest,
    has_bit,
)
from dpstream.topics.names import Role
from dpstream.topics.short_manifests import BASES, ManifestReader, base_of

# After missing this many consecutive decided epochs, a producer is not awaited until it returns.
MAX_MISSED_EPOCHS = 3
# Maximum number of manifests decoded together. Fewer than `_FEW_ROWS` are decoded one by one, which
# is as fast.
_ROWS, _FEW_ROWS = 1024, 8


@dataclass(frozen=True, slots=True)
class Decision:
    manifest: Manifest
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class RememberedDecision:
    """Compact form of a decision: one bit per producer, however many devices it has.

    `cut_offset` is the first offset after the window. `bits` are in order of registration, lowest
    bit first.
    """

    window_status: WindowStatus
    first_offset: int
    cut_offset: int
    bits: bytes

    def has(self, index: int) -> bool:
        return has_bit(self.bits, index)

    def inside(self, producers: int) -> NDArray[np.bool_]:
        # For empty input, `np.unpackbits` returns uninitialized memory.
        packed = np.frombuffer(self.bits or b"\0", np.uint8)
        return np.unpackbits(packed, count=producers, bitorder="little").view(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    rows: ManifestRows
    offsets: tuple[int, ...]

    def decision(self, row: int) -> Decision:
        return Decision(self.rows.manifest(row), self.offsets[row])


def manifest_reader(job: DeployedJob) -> ManifestReader:
    bases = BASES if job.short_manifests else 0
    return ManifestReader(job.fingerprint, job.deployment, bases)


def manifest_at(job: DeployedJob, offset: int) -> Steps[Manifest]:
    """Read a manifest again; manifests with many producers are not kept in memory."""
    reader = manifest_reader(job)
    record = yield from record_at(Role.MANIFESTS, 0, offset)
    base = base_of(record.value)
    if base is not None:
        reader.decode(base, (yield from record_at(Role.MANIFESTS, 0, base)).value)
    return reader.decode(offset, record.value)


def own_partial_window(job: DeployedJob, instance: int, record: LogRecord) -> Manifest | None:
    """Decode a parallel shuffler's manifest for its partial window; None for other records."""
    if instance == 1:
        return None
    try:
        manifest = decode_manifest(record.value)
    except CodecError:
        return None
    identity = manifest.deployment, manifest.fingerprint, manifest.instance
    return manifest if identity == (job.deployment, job.fingerprint, instance) else None


class DecisionLog:
    """Finalized epochs, recent membership, and the number of devices behind each producer.

    Manifests more than `EPOCHS_AHEAD` beyond the oldest undecided epoch are skipped. No worker
    decides that far ahead, and every intervening epoch would be pending work. All readers skip the
    same manifests, because the log alone determines the epochs decided so far.

    Args:
        on_decision: Called with every decision.
        on_decisions: Called instead of `on_decision` with decisions that were read together.
        after: Epoch; earlier records decided the epochs up to this one, and are not read.
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
        # Records are read one by one if manifests are short, because short manifests refer to
        # others that must be stored or looked up. The same holds if the caller only accepts single
        # decisions.
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
        try:
            manifest = self._reader.decode(record.offset, record.value)
        except CodecError:
            return
        if (manifest.deployment, manifest.fingerprint) != self._identity:
            return
        if manifest.instance > 1:
            # With parallel shufflers, only the first one decides.
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
        """Process records like `apply`, but faster; records before a read failure still count."""
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
        if not self._by_rows or self.first_epoch is None or len(records) < _FEW_ROWS:
            for record in records:
                self.apply(record)
        elif not self._apply_rows(records):
            middle = len(records) // 2
            self._apply_alike(records[:middle])
            self._apply_alike(records[middle:])

    def _apply_rows(self, records: Sequence[LogRecord]) -> bool:
        """Process records that decide distinct epochs, or return False without any effect."""
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
        numbers = rows.epochs, rows.statuses, rows.first_offsets, rows.cut_offsets
        offsets = tuple(record.offset for record in records)
        for epoch, window_status, first, cut in zip(
            *(each.tolist() for each in numbers), strict=True
        ):
            self._note(
                epoch, RememberedDecision(MANIFEST_STATUSES[window_status], first, cut, bits)
            )
        # All of these manifests have the same members.
        self._latest.note(latest)
        if self._on_decisions is not None:
            self._on_decisions(Decisions(rows, offsets))
        return True

    @property
    def whole_manifests(self) -> tuple[int, ...]:
        """Ascending offsets of the earlier manifests that later short manifests can refer to."""
        return self._reader.bases

    def recall(self, record: LogRecord) -> Manifest:
        return self._reader.decode(record.offset, record.value)

    def encode(self, manifest: Manifest) -> bytes:
        """Encode a decision that will be appended after the manifests read so far.

        Readers skip a short manifest if its base is no longer among the latest whole manifests.
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
            manifest.window_status, manifest.first_offset, manifest.cut_offset, bits
        )
        self._note(manifest.epoch, outcome)
        self._latest.note(manifest)

    def _bits_of(self, manifest: Manifest) -> bytes:
        if manifest.producers is not self._inside:
            self._inside = manifest.producers if len(manifest.producers) <= FEW else None
            inside = np.asarray(manifest.producers, np.bool_)
            bits = np.packbits(inside, bitorder="little").tobytes()
            # Membership rarely changes: share one object among equal decisions.
            self._bits = self._bits if bits == self._bits else bits
        return self._bits

    def _note(self, epoch: int, outcome: RememberedDecision) -> None:
        self._recent[epoch] = outcome
        self._order.append(epoch)
        if len(self._order) > EPOCHS_AHEAD:
            del self._recent[self._order.popleft()]

    def exists(self, epoch: int) -> bool:
        return self.first_epoch is None or epoch >= self.first_epoch

    def recent(self, epoch: int) -> RememberedDecision | None:
        return self._recent.get(epoch)

    def population(self, index: int) -> int:
        populations = self._latest.populations()
        return int(populations[index]) if index < len(populations) else 0

    def last_in(self, index: int) -> int:
        """Return the epoch of the latest window that includes a producer; 0 if no window does."""
        epochs = self._latest.epochs()
        return int(epochs[index]) if index < len(epochs) else 0

    def last_in_of(self, producers: int) -> NDArray[np.int64]:
        epochs = self._latest.epochs()
        return np.pad(epochs[:producers], (0, max(0, producers - len(epochs))))

    def oldest_undecided(self, registry_first_epoch: int) -> int:
        first = registry_first_epoch if self.first_epoch is None else self.first_epoch
        return self.decided.first_missing(first)

    def missed(self, index: int, first_epoch: int, epoch: int) -> bool:
        """Return whether the last `MAX_MISSED_EPOCHS` decisions before `epoch` lack a producer."""
        latest = self.latest_before(epoch)
        return (
            len(latest) == MAX_MISSED_EPOCHS
            and latest[-1][0] >= first_epoch
            and not any(outcome is None or outcome.has(index) for _, outcome in latest)
        )

    def absent(self, epoch: int, first_epochs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Evaluate `missed` for every producer; `first_epochs` is in order of registration."""
        latest, producers = self.latest_before(epoch), len(first_epochs)
        seen = np.zeros(producers, np.bool_)
        for _, outcome in latest:
            seen |= True if outcome is None else outcome.inside(producers)
        if len(latest) < MAX_MISSED_EPOCHS:
            return np.zeros(producers, np.bool_)
        return ~seen & (first_epochs <= latest[-1][0])

    def latest_before(self, epoch: int) -> tuple[tuple[int, RememberedDecision | None], ...]:
        """Return the last `MAX_MISSED_EPOCHS` decided epochs before `epoch`, latest first.

        All producers count as present in a decision that is no longer stored (None).
        """
        earlier = islice(self.decided.below(epoch), MAX_MISSED_EPOCHS)
        return tuple((each, self._recent.get(each)) for each in earlier)


FEW = 256
"""Maximum number of producers for which manifests with equal members are evaluated together."""


class LatestWindows:
    """Latest window of every producer; equal consecutive manifests are stored only once."""

    def __init__(self) -> None:
        self._epochs = np.zeros(0, np.int64)
        self._populations = np.zeros(0, np.uint32)
        self._alike: Manifest | None = None

    def note(self, manifest: Manifest) -> None:
        alike = self._alike
        if alike is not None and (
            manifest.producers is not alike.producers
            or manifest.populations is not alike.populations
        ):
            self._settle()
            alike = None
        if len(manifest.producers) > FEW:
            self._take_in(manifest)
        elif alike is None or manifest.epoch > alike.epoch:
            self._alike = manifest

    def epochs(self) -> NDArray[np.int64]:
        self._settle()
        return self._epochs

    def populations(self) -> NDArray[np.uint32]:
        self._settle()
        return self._populations

    def _settle(self) -> None:
        if self._alike is not None:
            self._take_in(self._alike)
            self._alike = None

    def _take_in(self, manifest: Manifest) -> None:
        inside = np.asarray(manifest.producers, np.bool_)
        more = len(inside) - len(self._epochs)
        if more > 0:
            self._epochs = np.pad(self._epochs, (0, more))
            self._populations = np.pad(self._populations, (0, more))
        populations = np.asarray(manifest.populations, np.uint32)
        latest = inside & (self._epochs[: len(inside)] < manifest.epoch)
        # Epochs are decided nearly in order: a producer is rarely in a later window already.
        if np.count_nonzero(latest) < len(populations):
            populations = populations[latest[inside]]
        self._epochs[: len(inside)][latest] = manifest.epoch
        self._populations[: len(inside)][latest] = populations
