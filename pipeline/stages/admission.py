"""Validate records from the raw topic, and state why a record is rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import place_problem
from dpstream.topics.batches import Batch, Punctuation, decode_batch, decode_punctuation
from dpstream.topics.frames import CodecError, OversizedError, RecordType, VersionError, kind_of
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason

if TYPE_CHECKING:
    from dpstream.topics.sealed_batches import SealedBatch


@dataclass(frozen=True, slots=True)
class Rejection:
    reason: Reason
    detail: str


# A record of a few bytes can represent 2^40 messages, all of which `order: random` would write.
WRITTEN_OUT_MAX = 1 << 24


def dead_letter(
    job: DeployedJob, role: Role, partition: int, offset: int, value: bytes, rejection: Rejection
) -> Append:
    letter = DeadLetter(
        job.topic(role), partition, offset, rejection.reason, rejection.detail, value
    )
    body, headers = letter.to_record()
    return Append(Role.DEAD_LETTERS, 0, body, headers=tuple(headers))


Record = TypeVar("Record")


class Addressed(Protocol):
    @property
    def deployment(self) -> bytes: ...

    @property
    def fingerprint(self) -> bytes: ...


def readable(decode: Callable[[bytes], Record], value: bytes) -> Record | Rejection:
    try:
        return decode(value)
    except VersionError as error:
        return Rejection(Reason.VERSION, str(error))
    except OversizedError as error:
        return Rejection(Reason.OVERSIZED, str(error))
    except CodecError as error:
        return Rejection(Reason.UNREADABLE, str(error))


def identity_rejection(job: DeployedJob, record: Addressed) -> Rejection | None:
    if record.deployment != job.deployment:
        return Rejection(
            Reason.DEPLOYMENT,
            f"deployment: got {record.deployment.hex()}; expected {job.deployment.hex()}",
        )
    if record.fingerprint != job.fingerprint:
        return Rejection(
            Reason.FINGERPRINT,
            f"fingerprint: got {record.fingerprint.hex()}; expected {job.fingerprint.hex()}",
        )
    return None


def decode_raw(value: bytes) -> Batch | SealedBatch | Punctuation:
    kind = kind_of(value)
    if kind is RecordType.BATCH:
        return decode_batch(value)
    if kind is RecordType.SEALED_BATCH:
        # Imported late because few jobs seal reports.
        from dpstream.topics.sealed_batches import decode_sealed_batch

        return decode_sealed_batch(value)
    if kind is RecordType.PUNCTUATION:
        return decode_punctuation(value)
    raise CodecError(f"record type: got {kind.name.lower()}; expected a batch or punctuation")


class MessageCheck:
    def __init__(self, job: DeployedJob, role: Role = Role.REPORTS) -> None:
        self._job = job
        self._form = job.format_of(role)
        # An aggregating stage releases sums instead of reports.
        checks = job.aggregator() if job.stage_sum is None else job.stage_sum
        self._check_messages = checks.check_messages

    def format_problem(self, values: NDArray[np.unsignedinteger]) -> str | None:
        if values.dtype != self._form.dtype or values.shape[1] != self._form.width:
            return (
                f"reports: got {values.shape[1]} x {values.dtype}; {self._job.protocol} "
                f"expects {self._form}"
            )
        return None

    def message_problem(self, epoch: int, values: NDArray[np.unsignedinteger]) -> str | None:
        distinct = self._form.distinct
        if distinct is not None and values.size and int(values.max()) >= distinct:
            return (
                f"message: got {int(values.max())}; {self._job.protocol} expects at most "
                f"{distinct - 1}"
            )
        try:
            self._check_messages(self._job.epochs.local(epoch), values)
        except ValueError as error:
            return str(error)
        return None


class Admission:
    """Decode and validate single records from a raw topic, with the same result on every worker."""

    def __init__(self, job: DeployedJob, role: Role = Role.REPORTS) -> None:
        self._job = job
        self._words = MessageCheck(job, role)

    def admit(self, partition: int, value: bytes) -> Batch | Punctuation | Rejection:
        record = self.addressed(partition, value)
        if isinstance(record, Rejection | Punctuation):
            return record
        batch = self._opened(record)
        return (self._foreign_messages(batch) if isinstance(batch, Batch) else None) or batch

    def addressed(
        self, partition: int, value: bytes
    ) -> Batch | SealedBatch | Punctuation | Rejection:
        """Validate a record as `admit` does, but without keys and without reading the reports."""
        record = readable(decode_raw, value)
        if isinstance(record, Rejection):
            return record
        rejection = identity_rejection(self._job, record)
        if rejection is not None:
            return rejection
        problem = place_problem(self._job, record.epoch, partition)
        if problem is not None:
            return Rejection(Reason.EPOCH, problem)
        return self._wrongly_sealed(record) or record

    def _wrongly_sealed(self, record: Batch | SealedBatch | Punctuation) -> Rejection | None:
        if isinstance(record, Batch | Punctuation):
            return None
        return Rejection(Reason.SEALED, "batch is sealed, but this job expects unsealed reports")

    def _opened(self, record: Batch | SealedBatch) -> Batch | Rejection:
        assert isinstance(record, Batch)
        return record

    def _foreign_messages(self, batch: Batch) -> Rejection | None:
        values = batch.words.values
        problem = self._words.format_problem(values)
        if problem is not None:
            return Rejection(Reason.PROTOCOL, problem)
        if self._job.shuffle.order == "random" and batch.words.messages > WRITTEN_OUT_MAX:
            return Rejection(
                Reason.OVERSIZED,
                f"messages in the record: got {batch.words.messages}; 'order: random' supports at "
                f"most {WRITTEN_OUT_MAX}",
            )
        problem = self._words.message_problem(batch.epoch, values)
        return None if problem is None else Rejection(Reason.PROTOCOL, problem)
