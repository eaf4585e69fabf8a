"""A producer's records for an epoch: batches of reports, and a final punctuation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpstream.topics.frames import (
    U4_MAX,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
)
from dpstream.topics.messages import (
    MESSAGES_FIELDS,
    PLAIN_ENCODINGS,
    Messages,
    pack_messages,
    unpack_messages,
)

if TYPE_CHECKING:
    from dpstream.topics.fixed_sizes import FixedSize

_BATCH = Frame(RecordType.BATCH, f"16s16sQ{MESSAGES_FIELDS}")
_PUNCTUATION = Frame(RecordType.PUNCTUATION, "16sQQQI8s")

DRAWING_BYTES = 8


def batch_id(drawing: bytes, index: int) -> bytes:
    """Return the ID of a batch: 8 random bytes that identify the draw, then the index, from 0.

    If a producer's directory is copied, both copies draw the reports of an epoch. A window must not
    combine batches of two draws, or batches of one draw with the punctuation of the other.
    Otherwise some devices would be counted twice, others not at all, and the device counts would be
    wrong.

    >>> drawing_of(batch_id(bytes(8), 3)) == bytes(8)
    True
    """
    return drawing + index.to_bytes(8, "little")


def drawing_of(batch: bytes) -> bytes:
    return batch[:DRAWING_BYTES]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of a producer's reports for one epoch.

    The fingerprint covers the job settings that change the meaning of a report. A batch that is
    sent again has the same ID, see `batch_id`, and is dropped. A fixed `size` hides the number of
    reports.
    """

    fingerprint: bytes
    deployment: bytes
    batch: bytes
    enrollment: bytes
    epoch: int
    words: Messages
    size: FixedSize | None = None

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint,
            deployment=self.deployment,
            batch=self.batch,
            enrollment=self.enrollment,
        )
        check_range("epoch", self.epoch, 1)


def encode_batch(batch: Batch) -> bytes:
    if batch.size is None:
        fields, payload = pack_messages(batch.words)
    else:
        from dpstream.topics.fixed_sizes import pack_sized

        fields, payload = pack_sized(batch.words, batch.size)
    return _BATCH.seal(
        batch.fingerprint,
        batch.deployment,
        batch.batch,
        batch.enrollment,
        batch.epoch,
        *fields,
        payload=payload,
    )


def decode_batch(data: bytes) -> Batch:
    """Decode a batch; its messages are read-only views of `data`."""
    fingerprint, deployment, batch, enrollment, epoch, encoding, *fields = _BATCH.open(data)
    size: FixedSize | None = None
    if encoding < PLAIN_ENCODINGS:
        words = unpack_messages(data, _BATCH.size, encoding, *fields)
    else:
        from dpstream.topics.fixed_sizes import unpack_sized

        words, size = unpack_sized(data, _BATCH.size, encoding, *fields)
    return Batch(fingerprint, deployment, batch, enrollment, epoch, words, size)


@dataclass(frozen=True, slots=True)
class Punctuation:
    """A producer's statement that it has sent all batches of an epoch.

    Attributes:
        batches: Number of batches sent for the epoch, at most 2^32 - 1.
        contributors: Number of devices present, whether or not a report was due.
        population: Number of devices enrolled with the producer, at least `contributors`.
        drawing: 8 bytes that identify the draw; see `batch_id`.
    """

    fingerprint: bytes
    deployment: bytes
    enrollment: bytes
    epoch: int
    batches: int
    contributors: int
    population: int
    drawing: bytes

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, enrollment=self.enrollment
        )
        if len(self.drawing) != DRAWING_BYTES:
            raise CodecError(f"draw ID has {len(self.drawing)} bytes; expected {DRAWING_BYTES}")
        check_range("epoch", self.epoch, 1)
        check_range("batches", self.batches, 0, U4_MAX)
        check_range("population", self.population, 0)
        check_range("contributors", self.contributors, 0, self.population)


def encode_punctuation(punctuation: Punctuation) -> bytes:
    return _PUNCTUATION.seal(
        punctuation.fingerprint,
        punctuation.deployment,
        punctuation.enrollment,
        punctuation.epoch,
        punctuation.contributors,
        punctuation.population,
        punctuation.batches,
        punctuation.drawing,
    )


def decode_punctuation(data: bytes) -> Punctuation:
    fingerprint, deployment, enrollment, epoch, contributors, population, batches, drawing = (
        _PUNCTUATION.open(data)
    )
    if len(data) != _PUNCTUATION.size:
        raise CodecError(
            f"punctuation has {len(data) - _PUNCTUATION.size} bytes of payload; expected none"
        )
    return Punctuation(
        fingerprint, deployment, enrollment, epoch, batches, contributors, population, drawing
    )
