"""Validate records from collectors, and the reports in these records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_range import place_problem
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.key_ring import NO_KEYS, KeyRing
from dpstream.pipeline.stages.admission import Rejection, identity_rejection, readable
from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.loose_batches import (
    LooseBatch,
    Watermark,
    decode_loose_batch,
    decode_watermark,
)
from dpstream.topics.records import Reason
from dpstream.topics.sealed_batches import SealedBatch
from dpstream.topics.sealing import CIPHERTEXT_BYTES, device_context, key_id, unseal_each


@dataclass(frozen=True, slots=True, eq=False)
class AdmittedReports:
    """Valid reports in a batch: decrypted, with messages that belong to the protocol.

    Attributes:
        tags: Tags of the devices, uint64, shape (reports,).
        contents: Decrypted contents, uint8, shape (reports, content bytes).
        ciphertexts: IDs that identify copies of a sealed report, uint64, shape (reports,).
    """

    epoch: int
    tags: NDArray[np.uint64]
    contents: NDArray[np.uint8]
    left_out: int
    ciphertexts: NDArray[np.uint64] | None = None


def decode_collected(value: bytes) -> LooseBatch | Watermark:
    kind = kind_of(value)
    if kind is RecordType.LOOSE_BATCH:
        return decode_loose_batch(value)
    if kind is RecordType.WATERMARK:
        return decode_watermark(value)
    raise CodecError(f"record type: got {kind.name.lower()}; expected loose_batch or watermark")


class DeviceAdmission:
    """Decode and validate records; an invalid report does not affect the other reports."""

    def __init__(self, job: DeployedJob, keys: KeyRing = NO_KEYS) -> None:
        assert job.devices is not None
        self._job = job
        self._devices = job.devices
        self._keys = keys
        self._form = job.content_format
        checks = job.aggregator() if job.stage_sum is None else job.stage_sum
        self._check_messages = checks.check_messages

    def check_keys(self) -> None:
        available = [self._keys.find(key) is not None for key in self._devices.keys]
        if available and (not available[-1] or available != sorted(available)):
            missing = [
                key_id(key).hex()
                for key, here in zip(self._devices.keys, available, strict=True)
                if not here
            ]
            raise WrongKeyError(
                f"job {self._job.name}: no private key in {self._keys.source} for device reports "
                f"encrypted to public key {', '.join(missing)}. Copy the key that 'dpstream "
                "keygen' created, or specify its folder with '--keys'"
            )

    def admit(self, partition: int, value: bytes) -> AdmittedReports | Watermark | Rejection:
        record = self.addressed(partition, value)
        return self._reports(record) if isinstance(record, LooseBatch) else record

    def addressed(self, partition: int, value: bytes) -> LooseBatch | Watermark | Rejection:
        """Validate a record as `admit` does, but without keys and without reading its reports."""
        record = readable(decode_collected, value)
        if isinstance(record, Rejection):
            return record
        rejection = identity_rejection(self._job, record)
        if rejection is not None:
            return rejection
        problem = place_problem(self._job, record.epoch, partition)
        if problem is not None:
            return Rejection(Reason.EPOCH, problem)
        return self._foreign(record) if isinstance(record, LooseBatch) else record

    def _foreign(self, batch: LooseBatch) -> LooseBatch | Rejection:
        public_key = self._devices.key_at(batch.epoch)
        expected = None if public_key is None else key_id(public_key)
        if batch.key != expected:
            names = [
                "not sealed" if k is None else f"sealed to {k.hex()}" for k in (batch.key, expected)
            ]
            return Rejection(
                Reason.SEALED,
                f"reports are {names[0]}; at epoch {batch.epoch} they must be {names[1]}",
            )
        size = self._form.size + (0 if expected is None else CIPHERTEXT_BYTES)
        if batch.contents.shape[1] != size:
            return Rejection(
                Reason.PROTOCOL,
                f"content of a report: got {batch.contents.shape[1]} bytes; expected {size}",
            )
        return batch

    def _reports(self, batch: LooseBatch) -> AdmittedReports | Rejection:
        tags, contents, ciphertexts = batch.tags, batch.contents, None
        if batch.key is not None:
            opened = self._opened(batch)
            if isinstance(opened, Rejection):
                return opened
            here = np.array([content is not None for content in opened], np.bool_)
            identities = np.ascontiguousarray(batch.reports[:, -8:]).view("<u8")[:, 0]
            tags, ciphertexts = tags[here], identities[here]
            contents = np.frombuffer(
                b"".join(content for content in opened if content is not None), np.uint8
            ).reshape(-1, self._form.size)
        known = self.known(batch.epoch, contents)
        return AdmittedReports(
            batch.epoch,
            tags[known],
            contents[known],
            len(batch.rows) - int(known.sum()),
            None if ciphertexts is None else ciphertexts[known],
        )

    def _opened(self, batch: LooseBatch) -> list[bytes | None] | Rejection:
        public_key = self._devices.key_at(batch.epoch)
        private_key = None if public_key is None else self._keys.find(public_key)
        if private_key is None:
            return Rejection(Reason.SEALED, "the reports are sealed to a key that was erased")
        about = device_context(batch.deployment, batch.fingerprint, batch.epoch, b"")
        ciphertexts = [ciphertext.tobytes() for ciphertext in batch.contents]
        contexts = [about + report.tobytes() for report in batch.reports]
        return unseal_each(ciphertexts, private_key, contexts)

    def known(self, epoch: int, contents: NDArray[np.uint8]) -> NDArray[np.bool_]:
        slots, counts, known = self._form.unpack(contents)
        self._leave_out_unknown(self._job.epochs.local(epoch), slots, counts, known)
        return known

    def _leave_out_unknown(
        self,
        local_epoch: int,
        slots: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint16],
        known: NDArray[np.bool_],
    ) -> None:
        candidates = np.flatnonzero(known)
        if not len(candidates) or self._all_known(local_epoch, slots[known], counts[known]):
            return
        if len(candidates) == 1:
            known[candidates] = False
            return
        half = candidates[len(candidates) // 2]
        for part in (slice(None, half), slice(half, None)):
            self._leave_out_unknown(local_epoch, slots[part], counts[part], known[part])

    def _all_known(
        self,
        local_epoch: int,
        slots: NDArray[np.unsignedinteger],
        counts: NDArray[np.uint16],
    ) -> bool:
        words = used_messages(slots, counts)
        distinct = self._job.message_format.distinct
        if distinct is not None and words.size and int(words.max()) >= distinct:
            return False
        try:
            self._check_messages(local_epoch, words)
        except ValueError:
            return False
        return True


RawRecord: TypeAlias = Batch | SealedBatch | Punctuation | LooseBatch | Watermark
"""Record of a topic of raw reports, from a producer or a collector."""


def used_messages(
    slots: NDArray[np.unsignedinteger], counts: NDArray[np.uint16]
) -> NDArray[np.unsignedinteger]:
    """Return the messages in the used slots; `slots` has shape (n, slots, width)."""
    return slots[np.arange(slots.shape[1]) < counts[:, None]]
