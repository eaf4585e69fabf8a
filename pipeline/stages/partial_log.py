"""The partials of a deployment: the first complete one of every epoch, or of each of its lanes."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.actions import LogRecord
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import epoch_problem
from pipeline.protocols.protocol import Aggregator
from pipeline.stages.epochs import EpochSet
from topics.frames import CodecError
from topics.names import SUMS, Role
from topics.partials import PartialPart, decode_partial, join_parts, spoiled_reason
from topics.shares import PartialSum


class PartialLog:
    """Puts the parts of partials together, in log order.

    A partial that is complete and whose payload is no state of the job's aggregator is passed over
    by everybody, as if it had never been complete; so are epochs and lanes that the job does not
    have. Where lanes have a partial each, an epoch is complete with the last of them, and its
    payload is what all of them count together, in whatever order they came.

    Args:
        job: the deployed job.
        on_partial: is shown the epoch and the payload of every epoch's first complete partial.
        role: of the topic: the partials of one of two parties that add up a share each are read in
            the same way.
        first: of epochs before it nothing is wanted, and nothing is looked at.
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
        self._identity = (job.deployment, job.fingerprint)
        self._on_partial = on_partial
        self._lanes = job.partial_parts if role is Role.PARTIALS else 1
        # By epoch and lane.
        self._parts: dict[
            tuple[int, int], dict[tuple[bytes, int, int], dict[int, PartialPart]]
        ] = {}
        self._through = [EpochSet() for _ in range(self._lanes)]
        # Of epochs some of whose lanes are complete, what these count.
        self._counted: dict[int, Aggregator] = {}
        self.complete = EpochSet() if self._lanes > 1 else self._through[0]

    @property
    def has_parts(self) -> bool:
        """Whether some was read of an epoch that is not complete."""
        return bool(self._counted) or any(self._parts.values())

    def has(self, epoch: int, lane: int) -> bool:
        """Whether the partial of a lane is complete; of an epoch without lanes, of its only one."""
        return epoch in self._through[lane - 1]

    def first(self, lane: int) -> int:
        """The lowest epoch of which a lane is complete; 0 before there is one."""
        return self._through[lane - 1].lowest

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the topic."""
        try:
            part = decode_partial(record.value)
        except CodecError:
            return
        if (part.deployment, part.fingerprint) != self._identity or part.lane > self._lanes:
            return
        if part.epoch < self._first or epoch_problem(self._job, part.epoch) is not None:
            return
        if self.has(part.epoch, part.lane):
            return
        payload = self._whole(part)
        if payload is None or not self._takes(part.epoch, payload):
            return
        self._parts.pop((part.epoch, part.lane), None)
        self._through[part.lane - 1].add(part.epoch)
        if not all(part.epoch in lane for lane in self._through):
            return
        self.complete.add(part.epoch)
        counted = self._counted.pop(part.epoch, None)
        if self._on_partial is not None:
            self._on_partial(part.epoch, payload if counted is None else counted.to_bytes())

    def _whole(self, part: PartialPart) -> bytes | None:
        """The payload of the partial that a part completes; None if it completes none."""
        if part.total == 1:
            return part.payload
        partial = (part.attempt, part.total, part.manifest_offset)
        partials = self._parts.setdefault((part.epoch, part.lane), {})
        parts = partials.setdefault(partial, {})
        parts.setdefault(part.index, part)
        if len(parts) < part.total:
            return None
        del partials[partial]
        try:
            return join_parts(parts.values())
        except CodecError:
            return None

    def _takes(self, epoch: int, payload: bytes) -> bool:
        """Whether a payload is something that the job aggregates; that of a lane is counted."""
        try:
            if self._role in SUMS:
                PartialSum.from_bytes(self._job.table_form, payload)
            elif not (self._job.shared and spoiled_reason(payload) is not None):
                state = self._job.aggregator_from_bytes(payload)
                if self._lanes > 1 and self._on_partial is not None:
                    self._counted.setdefault(epoch, self._job.aggregator()).merge(state)
        except ValueError:
            return False
        return True
