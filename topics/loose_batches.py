"""What collectors write for devices: loose batches of reports, enrolments and watermarks.

A batch here is loose: it is nobody's, has no punctuation, and is in a window exactly when it lies
at or below the window's cut. Whose a report is says a *tag* alone, which collectors make of the
device with a key of theirs. It tells two reports of one device and epoch for one, and links no
epochs.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.frames import (
    PAYLOAD_TARGET,
    RECORD_CAP,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
)
from dpstream.topics.sealing import KEY_ID_BYTES

TAG_BYTES: Final = 8
REPORT_ID_BYTES: Final = 16
COLLECTOR_KEY_BYTES: Final = 32

_BATCH = Frame(RecordType.LOOSE_BATCH, f"QII{KEY_ID_BYTES}s")
_ENROLMENTS = Frame(RecordType.ENROLMENTS, "Q")
_WATERMARK = Frame(RecordType.WATERMARK, "16sQ")
_TAG_TYPE = np.dtype("<u8")
_NO_KEY = bytes(KEY_ID_BYTES)

LOOSE_PAYLOAD_TARGET: Final = PAYLOAD_TARGET
LOOSE_PAYLOAD_MAX: Final = RECORD_CAP - _BATCH.size
"""Bytes of rows that one batch can hold."""


def report_tag(key: bytes, deployment: bytes, epoch: int, subject: bytes) -> bytes:
    """Whose report of an epoch it is: 8 bytes.

    Args:
        key: 32 bytes that all collectors of the job share, and nobody else has.
        deployment: 16 bytes.
        epoch: at least 1.
        subject: see `subject_of_device` and `subject_of_token`.
    """
    return _tag(key, b"report\0", deployment, epoch, subject)


def horizon_tag(key: bytes, deployment: bytes, horizon: int, subject: bytes) -> bytes:
    """Who is enrolled in a horizon, from 0 on: 8 bytes, which no tag of a report resembles."""
    return _tag(key, b"horizon\0", deployment, horizon, subject)


def subject_of_device(device: bytes) -> bytes:
    """Who reports, where nobody checks it: the device, by the id that it drew."""
    return b"d" + device


def subject_of_token(subject: str) -> bytes:
    """Who reports, by what a token says, whatever the device calls itself."""
    return b"s" + subject.encode()


def _tag(key: bytes, what: bytes, deployment: bytes, number: int, subject: bytes) -> bytes:
    message = b"".join((what, deployment, number.to_bytes(8, "little"), subject))
    return hmac.digest(key, message, "sha256")[:TAG_BYTES]


@dataclass(frozen=True, slots=True, eq=False)
class LooseBatch:
    """Reports of some devices at one epoch.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        epoch: at least 1.
        key: 8 bytes, id of the key that contents are sealed to; None where they are not.
        rows: uint8, shape (reports, bytes of a row), at least one: the tag (8), the id of the
            report (16) where it is sealed, and the content.

    Raises:
        CodecError: a field has another length or lies outside its range.
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
            raise CodecError(f"key has {len(self.key)} bytes, must have {KEY_ID_BYTES}")
        if self.rows.ndim != 2 or not len(self.rows) or self.rows.shape[1] <= self._beside_content:
            raise CodecError(f"rows of shape {self.rows.shape} are no tags with contents")

    @property
    def _beside_content(self) -> int:
        return TAG_BYTES + (0 if self.key is None else REPORT_ID_BYTES)

    @property
    def tags(self) -> NDArray[np.uint64]:
        """Whose the reports are, shape (reports,)."""
        return np.ascontiguousarray(self.rows[:, :TAG_BYTES]).view(_TAG_TYPE)[:, 0]

    @property
    def reports(self) -> NDArray[np.uint8]:
        """Ids of the reports, shape (reports, 16), of a sealed batch."""
        return self.rows[:, TAG_BYTES : self._beside_content]

    @property
    def contents(self) -> NDArray[np.uint8]:
        """Shape (reports, bytes of a content), sealed or not."""
        return self.rows[:, self._beside_content :]


def encode_loose_batch(batch: LooseBatch) -> bytes:
    """The record of a loose batch.

    Raises:
        OversizedError: it would be larger than `RECORD_CAP`.
    """
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
    """The loose batch of a record; its rows are a read-only view of `data`.

    Raises:
        CodecError: the record is not a valid one.
    """
    fingerprint, deployment, epoch, count, row_bytes, key = _BATCH.open(data)
    length = len(data) - _BATCH.size
    if count * row_bytes != length:
        raise CodecError(f"payload of {length} bytes, {count} rows of {row_bytes} bytes are said")
    rows = np.frombuffer(data, np.uint8, offset=_BATCH.size).reshape(count, row_bytes)
    return LooseBatch(fingerprint, deployment, epoch, None if key == _NO_KEY else key, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Enrolments:
    """Devices that report for the first time in a horizon, or say so once more.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        epoch: of what they report, at least 1.
        tags: uint64, shape (devices,), at least one; see `horizon_tag`.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    tags: NDArray[np.uint64]

    def __post_init__(self) -> None:
        check_identities(fingerprint=self.fingerprint, deployment=self.deployment)
        check_range("epoch", self.epoch, 1)
        check_range("number of tags", len(self.tags), 1)


def encode_enrolments(enrolments: Enrolments) -> bytes:
    """The record of enrolments.

    Raises:
        OversizedError: it would be larger than `RECORD_CAP`.
    """
    return _ENROLMENTS.seal(
        enrolments.fingerprint,
        enrolments.deployment,
        enrolments.epoch,
        payload=enrolments.tags.astype(_TAG_TYPE).tobytes(),
    )


def decode_enrolments(data: bytes) -> Enrolments:
    """The enrolments of a record; the tags are a read-only view of `data`.

    Raises:
        CodecError: the record is not a valid one.
    """
    fingerprint, deployment, epoch = _ENROLMENTS.open(data)
    length = len(data) - _ENROLMENTS.size
    if length % TAG_BYTES:
        raise CodecError(f"{length} bytes of tags, of which each has {TAG_BYTES}")
    tags = np.frombuffer(data, _TAG_TYPE, offset=_ENROLMENTS.size)
    return Enrolments(fingerprint, deployment, epoch, tags)


@dataclass(frozen=True, slots=True)
class Watermark:
    """A collector's word that it takes no more reports of an epoch: all it took lie before.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        collector: 16 bytes, random, of the process.
        epoch: at least 1.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

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
    """The record of a watermark."""
    return _WATERMARK.seal(
        watermark.fingerprint, watermark.deployment, watermark.collector, watermark.epoch
    )


def decode_watermark(data: bytes) -> Watermark:
    """The watermark of a record.

    Raises:
        CodecError: the record is not a valid one.
    """
    fingerprint, deployment, collector, epoch = _WATERMARK.open(data)
    if len(data) != _WATERMARK.size:
        raise CodecError(f"watermark with {len(data) - _WATERMARK.size} bytes of payload")
    return Watermark(fingerprint, deployment, collector, epoch)
