"""Read the partials of a deployment; the first complete partial of an epoch counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dpstream.pipeline.actions import Append, LogRecord, Steps, places_near
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.topics.frames import CodecError
from dpstream.topics.names import SUMS, Role
from dpstream.topics.partials import (
    PartialPart,
    corruption_reason,
    decode_partial,
    encode_partial,
    join_parts,
    split_partial,
)


class PartialLog:
    """Assemble partials from their parts, in log order; epochs before `first` are ignored.

    A complete partial does not count if its payload is not a state of the job's aggregator.
    `on_partial` is called with the epoch and payload of every epoch's first complete partial.
    """

    def __init__(
        self,
        job: DeployedJob,
        on_partial: Callable[[int, bytes], None] | None = None,
        role: Role = Role.PARTIALS,
        first: int = 1,
    ) -> None:
        self._role = role
        self._first = first
        self._job = job
        self._shared = job.shared
        self._identity = (job.deployment, job.fingerprint)
        self._on_partial = on_partial
        self._parts: dict[int, dict[tuple[bytes, int, int], dict[int, PartialPart]]] = {}
        self.complete = EpochSet()

    @property
    def has_parts(self) -> bool:
        return any(self._parts.values())

    def apply(self, record: LogRecord) -> None:
        try:
            part = decode_partial(record.value)
        except CodecError:
            return
        if (part.deployment, part.fingerprint) != self._identity:
            return
        if part.epoch < self._first or epoch_problem(self._job, part.epoch) is not None:
            return
        if part.epoch in self.complete:
            return
        payload = self._whole(part)
        if payload is None or not self._takes(payload):
            return
        self._parts.pop(part.epoch, None)
        self.complete.add(part.epoch)
        if self._on_partial is not None:
            self._on_partial(part.epoch, payload)

    def _whole(self, part: PartialPart) -> bytes | None:
        if part.total == 1:
            return part.payload
        partial = (part.attempt, part.total, part.manifest_offset)
        partials = self._parts.setdefault(part.epoch, {})
        parts = partials.setdefault(partial, {})
        parts.setdefault(part.index, part)
        if len(parts) < part.total:
            return None
        del partials[partial]
        try:
            return join_parts(parts.values())
        except CodecError:
            return None

    def _takes(self, payload: bytes) -> bool:
        try:
            if self._role in SUMS:
                from dpstream.topics.shares import PartialSum

                PartialSum.from_bytes(self._job.table_format, payload)
            elif not (self._shared and corruption_reason(payload) is not None):
                self._job.aggregator_from_bytes(payload)
        except ValueError:
            return False
        return True


def append_partial(
    job: DeployedJob,
    role: Role,
    epoch: int,
    manifest_offset: int,
    attempt: bytes,
    payload: bytes,
) -> Steps[None]:
    parts = split_partial(
        fingerprint=job.fingerprint,
        deployment=job.deployment,
        epoch=epoch,
        manifest_offset=manifest_offset,
        attempt=attempt,
        payload=payload,
    )
    for part in parts:
        yield Append(role, 0, encode_partial(part))


class CompletePartials:
    """Epochs whose partials have been read completely; reads the log only as far back as needed.

    Aggregators only need the partials of windows whose chunks still arrive, so they start near the
    end of the log. A window whose older partial is missed would be aggregated again, and leftovers
    from a paused writer would hold back the committed offset forever. The log is therefore read
    from further back before a chunk is accepted for an older epoch, and while a window stays
    incomplete.

    `whole` is True if the whole topic was read. All other epochs then have no complete partial.
    """

    def __init__(self, job: DeployedJob, role: Role) -> None:
        self._job = job
        self._role = role
        self._places: Iterator[int] | None = None
        self._start_at(job.start_offset(role))
        self.whole = False

    @property
    def complete(self) -> EpochSet:
        return self._log.complete

    def reach(self, epoch: int) -> bool:
        """Return whether reading started early enough in the log to find an epoch's partial."""
        return self.whole or 0 < self.complete.lowest <= epoch

    def catch_up(self) -> Steps[None]:
        """Read new partials; the first call reads partials near the end of the topic.

        Sealed jobs read the whole topic: an epoch whose keys are erased cannot be aggregated again.
        """
        if self._places is not None:
            yield from self._cursor.catch_up()
            return
        start = self._job.start_offset(self._role)
        yield from self._cursor.find_end()
        self._places = places_near(start, self._cursor.end)
        if self._job.sealed is not None:
            self._places = iter((start,))
        yield from self.read_back()

    def flush(self) -> Steps[None]:
        """Wait until all appends are acknowledged, and read the log up to these records."""
        yield from self._cursor.flush()

    def read_back(self) -> Steps[None]:
        assert self._places is not None, "the end must be read first"
        place = next(self._places, None)
        if place is not None:
            self._start_at(place)
            yield from self._cursor.catch_up()
            self.whole = place == self._job.start_offset(self._role)

    def _start_at(self, offset: int) -> None:
        self._log = PartialLog(self._job, role=self._role)
        self._cursor = self._job.cursor(self._role, self._log.apply)
        self._cursor.position = offset
