"""Validate and decrypt the records in a raw topic of a sealed job."""

from __future__ import annotations

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.stages.admission import Admission, Rejection
from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role
from dpstream.topics.records import Reason
from dpstream.topics.sealed_batches import SealedBatch, open_batch
from dpstream.topics.sealing import key_id


class SealedAdmission(Admission):
    """Validate sealed reports or batches; the aggregator checks the contents of reports."""

    def __init__(self, job: DeployedJob, keys: KeyRing, role: Role = Role.REPORTS) -> None:
        super().__init__(job, role)
        self._keys = keys
        self._role = role

    def _wrongly_sealed(self, record: Batch | SealedBatch | Punctuation) -> Rejection | None:
        if not self._job.seals_batches:
            return super()._wrongly_sealed(record)
        if isinstance(record, Batch):
            return Rejection(Reason.SEALED, "batch is not sealed; expected a sealed batch")
        return None

    def _opened(self, sealed: Batch | SealedBatch) -> Batch | Rejection:
        if isinstance(sealed, Batch):
            return sealed
        lock = self._job.locks.of_batch(self._role, sealed.epoch)
        if sealed.key != key_id(lock.public_key):
            return Rejection(
                Reason.SEALED,
                f"batch is sealed to key {sealed.key.hex()}; epoch {sealed.epoch} requires key "
                f"{key_id(lock.public_key).hex()}",
            )
        private_key = self._keys.find(lock.public_key)
        if private_key is None:
            return Rejection(Reason.SEALED, f"the batch's key {sealed.key.hex()} was erased")
        try:
            return open_batch(sealed, private_key, lock.context)
        except CodecError as error:
            return Rejection(Reason.SEALED, str(error))

    def _foreign_messages(self, batch: Batch) -> Rejection | None:
        problem = self._words.format_problem(batch.words.values)
        return None if problem is None else Rejection(Reason.PROTOCOL, problem)
