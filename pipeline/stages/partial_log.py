"""The partials of a deployment: the first complete one of every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeline.actions import LogRecord
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import epoch_problem
from pipeline.stages.epochs import EpochSet
from topics.frames import CodecError
from topics.names import SUMS, Role
from topics.partials import PartialPart, decode_partial, join_parts, spoiled_reason
from topics.shares import PartialSum


class PartialLog:
    """Puts the parts of partials together, in log order.

    A partial that is complete and whose payload is no state of the job's aggregator is passed over
    by everybody, as if it had never been complete; so are epochs that the job does not have.

    Args:
        job: the deployed job.
        on_partial: is shown the epoch and the payload of every epoch's first complete partial.
        role: of the topic: the partials of one of two parties that add up a share each are read in
            the same way.
    """

    def __init__(
        self,
        job: DeployedJob,
        on_partial: Callable[[int, bytes], None] | None = None,
        role: Role = Role.PARTIALS,
    ) -> None:
        self._role = role
        self._job = job
        self._identity = (job.deployment, job.fingerprint)
        self._on_partial = on_partial
        self._parts: dict[int, dict[tuple[bytes, int, int], dict[int, PartialPart]]] = {}
        self.complete = EpochSet()

    def apply(self, record: LogRecord) -> None:
        """Take in one record of the topic."""
        try:
            part = decode_partial(record.value)
        except CodecError:
            return
        if (part.deployment, part.fingerprint) != self._identity or part.epoch in self.complete:
            return
        if epoch_problem(self._job, part.epoch) is not None:
            return
        partial = (part.attempt, part.total, part.manifest_offset)
        parts = self._parts.setdefault(part.epoch, {}).setdefault(partial, {})
        parts.setdefault(part.index, part)
        if len(parts) < part.total:
            return
        payload = self._payload(parts.values())
        if payload is None:
            del self._parts[part.epoch][partial]
            return
        del self._parts[part.epoch]
        self.complete.add(part.epoch)
        if self._on_partial is not None:
            self._on_partial(part.epoch, payload)

    def _payload(self, parts: Iterable[PartialPart]) -> bytes | None:
        """What parts add up to; None if it is nothing that the job aggregates."""
        try:
            payload = join_parts(parts)
            if self._role in SUMS:
                PartialSum.from_bytes(self._job.table_form, payload)
            elif not (self._job.shared and spoiled_reason(payload) is not None):
                self._job.aggregator_from_bytes(payload)
        except ValueError:
            return None
        return payload
