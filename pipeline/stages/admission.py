"""Which records of the raw topic belong to a job, and why the others do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pipeline.actions import Append
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_range import place_problem
from topics.batches import Batch, Punctuation, decode_batch, decode_punctuation
from topics.frames import CodecError, Kind, OversizedError, VersionError, kind_of
from topics.names import Role
from topics.records import DeadLetter, Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a record goes to the dead letters."""

    reason: Reason
    detail: str


# A record of a few bytes may stand for 2^40 messages, which `order: random` would write out.
WRITTEN_OUT_MAX = 1 << 24


def dead_letter(
    job: DeployedJob, role: Role, partition: int, offset: int, value: bytes, refusal: Refusal
) -> Append:
    """The record that keeps a refused one, and says why."""
    letter = DeadLetter(job.topic(role), partition, offset, refusal.reason, refusal.detail, value)
    body, headers = letter.to_record()
    return Append(Role.DEAD_LETTERS, 0, body, headers=tuple(headers))


Record = TypeVar("Record")


class Addressed(Protocol):
    """Anything on the wire that names its deployment and the job's fingerprint."""

    @property
    def deployment(self) -> bytes:
        """16 bytes."""
        ...

    @property
    def fingerprint(self) -> bytes:
        """16 bytes."""
        ...


def readable(decode: Callable[[bytes], Record], value: bytes) -> Record | Refusal:
    """What a record says, or why nobody can read it."""
    try:
        return decode(value)
    except VersionError as error:
        return Refusal(Reason.VERSION, str(error))
    except OversizedError as error:
        return Refusal(Reason.OVERSIZED, str(error))
    except CodecError as error:
        return Refusal(Reason.UNREADABLE, str(error))


def identity_refusal(job: DeployedJob, record: Addressed) -> Refusal | None:
    """Why a record of another deployment or another job is refused."""
    if record.deployment != job.deployment:
        return Refusal(
            Reason.DEPLOYMENT,
            f"made for deployment {record.deployment.hex()}, this one is {job.deployment.hex()}",
        )
    if record.fingerprint != job.fingerprint:
        return Refusal(
            Reason.FINGERPRINT,
            f"made for a job of fingerprint {record.fingerprint.hex()}, "
            f"this one has {job.fingerprint.hex()}",
        )
    return None


def decode_raw(value: bytes) -> Batch | Punctuation:
    """A record of the raw topic."""
    kind = kind_of(value)
    if kind is Kind.BATCH:
        return decode_batch(value)
    if kind is Kind.PUNCTUATION:
        return decode_punctuation(value)
    raise CodecError(f"a {kind.name.lower()} has no place in this topic")


class Admission:
    """Reads and checks single records of the raw topic: pure, and the same on every worker."""

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._aggregator = job.aggregator()

    def admit(self, partition: int, value: bytes) -> Batch | Punctuation | Refusal:
        """A batch or punctuation of this job and partition, or the reason to refuse it."""
        record = readable(decode_raw, value)
        if isinstance(record, Refusal):
            return record
        return identity_refusal(self._job, record) or self._misplaced(partition, record) or record

    def _misplaced(self, partition: int, record: Batch | Punctuation) -> Refusal | None:
        problem = place_problem(self._job, record.epoch, partition)
        if problem is not None:
            return Refusal(Reason.EPOCH, problem)
        return self._foreign_words(record) if isinstance(record, Batch) else None

    def _foreign_words(self, batch: Batch) -> Refusal | None:
        values, form = batch.words.values, self._job.word_form
        if values.dtype != form.dtype or values.shape[1] != form.width:
            return Refusal(
                Reason.PROTOCOL,
                f"reports of {values.shape[1]} x {values.dtype}, {self._job.protocol} has {form}",
            )
        if form.distinct is not None and values.size and int(values.max()) >= form.distinct:
            return Refusal(
                Reason.PROTOCOL,
                f"word {int(values.max())}, {self._job.protocol} has words below {form.distinct}",
            )
        if self._job.shuffle.order == "random" and batch.words.messages > WRITTEN_OUT_MAX:
            return Refusal(
                Reason.OVERSIZED,
                f"stands for {batch.words.messages} messages; order: random writes every one of "
                f"them, and takes at most {WRITTEN_OUT_MAX} from a record",
            )
        try:
            self._aggregator.check_words(self._job.local_epoch(batch.epoch), values)
        except ValueError as error:
            return Refusal(Reason.PROTOCOL, str(error))
        return None
