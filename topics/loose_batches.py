"""Collector records: loose batches of device reports, enrollments and watermarks.

A loose batch belongs to no producer and has no punctuation. It is in its epoch's window if and only
if its offset is below the window's cut. Only a *tag* identifies the device of a report; collectors
derive the tag from the sender's identity with a key that they share. Tags reveal duplicate reports
from one device in one epoch, and do not link epochs.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.frames import (
    PAYLOAD_TARGET,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
)
from dpstream.topics.sealing import KEY_ID_BYTES

TAG_BYTES: Final = 8
REPORT_ID_BYTES: Final = 16

_BATCH = Frame(RecordType.LOOSE_BATCH, f"QII{KEY_ID_BYTES}s")
_ENROLLMENTS = Frame(RecordType.ENROLLMENTS, "Q")
_WATERMARK = Frame(RecordType.WATERMARK, "16sQ")
_TAG_TYPE = np.dtype("<u8")
_NO_KEY = bytes(KEY_ID_BYTES)

LOOSE_PAYLOAD_TARGET: Final = PAYLOAD_TARGET


def report_tag(key: bytes, deployment: bytes, epoch: int, subject: bytes) -> bytes:
    """Return the 8-byte tag of a report's sender at an epoch.

    All collectors of the job share `key`, 32 bytes, and no other party has it. For `subject` see
    `subject_of_device` and `subject_of_token`.
    """
    return _tag(key, b"report\0", deployment, epoch, subject)


def horizon_tag(key: bytes, deployment: bytes, horizon: int, subject: bytes) -> bytes:
    """Return the 8-byte tag of an enrollment in a horizon (from 0), unrelated to report tags."""
    return _tag(key, b"horizon\0", deployment, horizon, subject)


def subject_of_device(device: bytes) -> bytes:
    return b"d" + device


def subject_of_token(subject: str) -> bytes:
    """Return the subject of an authenticated sender, from its token; the device ID is ignored."""
    return b"s" + subject.encode()


def _tag(key: bytes, what: bytes, deployment: bytes, number: int, subject: bytes) -> bytes:
    message = b"".join((what, deployment, number.to_bytes(8, "little"), subject))
    return hmac.digest(key, message, "sha256")[:TAG_BYTES]


@dataclass(frozen=True, slots=True, eq=False)
class LooseBatch:
    """Reports of several devices for one epoch.

    `key` identifies the key to which contents are sealed (8 bytes), or is None. `rows` is uint8,
    shape (reports, bytes per row): tag (8 bytes), report ID (16 bytes, if sealed), content.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    key: bytes | None
    rows: NDArray[np.uint8]

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        if self.key is not None and len(self.key) != KEY_ID_BYTES:
            raise CodecError(f"key ID has {len(self.key)} bytes; expected {KEY_ID_BYTES}")
        if self.rows.ndim != 2 or not len(self.rows) or self.rows.shape[1] <= self._beside_content:
            raise CodecError(
                f"rows have shape {self.rows.shape}; expected at least one row, each of more than "
                f"{self._beside_content} bytes"
            )

    @property
    def _beside_content(self) -> int:
        return TAG_BYTES + (0 if self.key is None else REPORT_ID_BYTES)

    @property
    def tags(self) -> NDArray[np.uint64]:
        """Tags of the senders, shape (reports,)."""
        return np.ascontiguousarray(self.rows[:, :TAG_BYTES]).view(_TAG_TYPE)[:, 0]

    @property
    def reports(self) -> NDArray[np.uint8]:
        """Report IDs of a sealed batch, shape (reports, 16)."""
        return self.rows[:, TAG_BYTES : self._beside_content]

    @property
    def contents(self) -> NDArray[np.uint8]:
        """Sealed or plain contents, shape (reports, bytes per content)."""
        return self.rows[:, self._beside_content :]


def encode_loose_batch(batch: LooseBatch) -> bytes:
    count, row_bytes = batch.rows.shape
    return _BATCH.seal(
        batch.fingerprint,
        batch.deployment,
        batch.epoch,
        count,
        row_bytes,
        _NO_KEY if batch.key is None else batch.key,
        payload=batch.rows.tobytes(),
    )


def decode_loose_batch(data: bytes) -> LooseBatch:
    """Decode a loose batch; its rows are a read-only view of `data`."""
    fingerprint, deployment, epoch, count, row_bytes, key = _BATCH.open(data)
    length = len(data) - _BATCH.size
    if count * row_bytes != length:
        raise CodecError(
            f"payload has {length} bytes; the header states {count} rows of {row_bytes} bytes"
        )
    rows = np.frombuffer(data, np.uint8, offset=_BATCH.size).reshape(count, row_bytes)
    return LooseBatch(fingerprint, deployment, epoch, None if key == _NO_KEY else key, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Enrollments:
    """Devices that report for the first time in a horizon; repetitions are possible."""

    fingerprint: bytes
    deployment: bytes
    epoch: int
    tags: NDArray[np.uint64]

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        check_range("number of tags", len(self.tags), 1)


def encode_enrollments(enrollments: Enrollments) -> bytes:
    return _ENROLLMENTS.seal(
        enrollments.fingerprint,
        enrollments.deployment,
        enrollments.epoch,
        payload=enrollments.tags.astype(_TAG_TYPE).tobytes(),
    )


def decode_enrollments(data: bytes) -> Enrollments:
    """Decode enrollments; the tags are a read-only view of `data`."""
    fingerprint, deployment, epoch = _ENROLLMENTS.open(data)
    length = len(data) - _ENROLLMENTS.size
    if length % TAG_BYTES:
        raise CodecError(f"tags have {length} bytes; expected a multiple of {TAG_BYTES}")
    tags = np.frombuffer(data, _TAG_TYPE, offset=_ENROLLMENTS.size)
    return Enrollments(fingerprint, deployment, epoch, tags)


@dataclass(frozen=True, slots=True)
class Watermark:
    fingerprint: bytes
    deployment: bytes
    collector: bytes
    epoch: int

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, collector=self.collector
        )
        check_range("epoch", self.epoch, 1)


def encode_watermark(watermark: Watermark) -> bytes:
    return _WATERMARK.seal(
        watermark.fingerprint, watermark.deployment, watermark.collector, watermark.epoch
    )


def decode_watermark(data: bytes) -> Watermark:
    fingerprint, deployment, collector, epoch = _WATERMARK.open(data)
    if len(data) != _WATERMARK.size:
        raise CodecError(
            f"watermark has {len(data) - _WATERMARK.size} bytes of payload; expected none"
        )
    return Watermark(fingerprint, deployment, collector, epoch)
