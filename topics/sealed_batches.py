"""Batches that only the shuffler can read: a whole batch in one ciphertext."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.topics.batches import Batch, decode_batch, encode_batch
from dpstream.topics.frames import (
    PAYLOAD_TARGET,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
)
from dpstream.topics.sealing import (
    CIPHERTEXT_BYTES,
    KEY_ID_BYTES,
    Lock,
    key_id,
    seal,
    unseal,
)

_SEALED = Frame(RecordType.SEALED_BATCH, f"Q{KEY_ID_BYTES}s")

SEALED_PAYLOAD_TARGET: Final = PAYLOAD_TARGET - 256
"""Target size of a batch's payload, in bytes; the sealed batch is within `RECORD_TARGET`."""


@dataclass(frozen=True, slots=True)
class SealedBatch:
    fingerprint: bytes
    deployment: bytes
    epoch: int
    key: bytes
    ciphertext: bytes

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        if len(self.key) != KEY_ID_BYTES:
            raise CodecError(f"key ID has {len(self.key)} bytes; expected {KEY_ID_BYTES}")
        if len(self.ciphertext) < CIPHERTEXT_BYTES:
            raise CodecError(
                f"ciphertext has {len(self.ciphertext)} bytes; expected at least {CIPHERTEXT_BYTES}"
            )


def seal_batch(batch: Batch, lock: Lock) -> bytes:
    return encode_sealed_batch(
        SealedBatch(
            batch.fingerprint,
            batch.deployment,
            batch.epoch,
            key_id(lock.public_key),
            seal(encode_batch(batch), lock),
        )
    )


def open_batch(sealed: SealedBatch, private_key: X25519PrivateKey, context: bytes) -> Batch:
    """Decrypt a batch; raise `CodecError` if that fails or it belongs elsewhere."""
    content = unseal(sealed.ciphertext, private_key, context)
    if content is None:
        raise CodecError("decryption failed: the ciphertext was altered or sealed to another key")
    batch = decode_batch(content)
    outside = sealed.fingerprint, sealed.deployment, sealed.epoch
    if (batch.fingerprint, batch.deployment, batch.epoch) != outside:
        raise CodecError("the sealed batch belongs to another job, deployment or epoch")
    return batch


def encode_sealed_batch(sealed: SealedBatch) -> bytes:
    return _SEALED.seal(
        sealed.fingerprint, sealed.deployment, sealed.epoch, sealed.key, payload=sealed.ciphertext
    )


def decode_sealed_batch(data: bytes) -> SealedBatch:
    fingerprint, deployment, epoch, key = _SEALED.open(data)
    return SealedBatch(fingerprint, deployment, epoch, key, data[_SEALED.size :])
