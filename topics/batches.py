"""What a producer sends for an epoch: batches of reports, and a punctuation that ends them."""

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
from dpstream.topics.words import PLAIN_ENCODINGS, WORDS_FIELDS, Words, pack_words, unpack_words

if TYPE_CHECKING:
    from dpstream.topics.fixed_sizes import FixedSize

_BATCH = Frame(RecordType.BATCH, f"16s16sQ{WORDS_FIELDS}")
_PUNCTUATION = Frame(RecordType.PUNCTUATION, "16sQQQI8s")

DRAWING_BYTES = 8


def batch_id(drawing: bytes, index: int) -> bytes:
    """The id of a batch: which drawing of an epoch's reports it is of, and which of its batches.

    Two producers with copies of one folder both draw an epoch. Their batches must never be put
    together, nor with the other's punctuation: some devices would be in twice, others not at all,
    and the numbers of devices would be of other ones.

    Args:
        drawing: 8 random bytes, new whenever an epoch is drawn.
        index: of the batch, from 0.

    >>> drawing_of(batch_id(bytes(8), 3)) == bytes(8)
    True
    """
    return drawing + index.to_bytes(8, "little")


def drawing_of(batch: bytes) -> bytes:
    """The drawing of a batch id."""
    return batch[:DRAWING_BYTES]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some of the reports of one producer for one epoch.

    Attributes:
        fingerprint: 16 bytes; of the job, covers what changes the meaning of a report.
        deployment: 16 bytes; id of the deployment the reports were made for.
        batch: 16 bytes, see `batch_id`; a batch that is sent again keeps its id and is dropped.
        enrolment: 16 bytes; id the producer registered under.
        epoch: at least 1.
        words: the reports.
        size: the room they are given, where their number must not show; None: what they take.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    fingerprint: bytes
    deployment: bytes
    batch: bytes
    enrolment: bytes
    epoch: int
    words: Words
    size: FixedSize | None = None

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint,
            deployment=self.deployment,
            batch=self.batch,
            enrolment=self.enrolment,
        )
        check_range("epoch", self.epoch, 1)


def encode_batch(batch: Batch) -> bytes:
    """The record of a batch.

    Raises:
        OversizedError: it would be larger than `RECORD_CAP`; see `split_words` and `split_fixed`.
        CodecError: its words cannot be written in one record, or do not fit their size.
    """
    if batch.size is None:
        fields, payload = pack_words(batch.words)
    else:
        from dpstream.topics.fixed_sizes import pack_sized

        fields, payload = pack_sized(batch.words, batch.size)
    return _BATCH.seal(
        batch.fingerprint,
        batch.deployment,
        batch.batch,
        batch.enrolment,
        batch.epoch,
        *fields,
        payload=payload,
    )


def decode_batch(data: bytes) -> Batch:
    """The batch of a record; its words are read-only views of `data`.

    Raises:
        CodecError: the record is not a valid batch.
    """
    fingerprint, deployment, batch, enrolment, epoch, encoding, *fields = _BATCH.open(data)
    size: FixedSize | None = None
    if encoding < PLAIN_ENCODINGS:
        words = unpack_words(data, _BATCH.size, encoding, *fields)
    else:
        from dpstream.topics.fixed_sizes import unpack_sized

        words, size = unpack_sized(data, _BATCH.size, encoding, *fields)
    return Batch(fingerprint, deployment, batch, enrolment, epoch, words, size)


@dataclass(frozen=True, slots=True)
class Punctuation:
    """A producer's word that it has sent everything for an epoch.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        enrolment: 16 bytes; id the producer registered under.
        epoch: at least 1.
        batches: how many batches it sent for the epoch, at most 2^32 - 1.
        contributors: devices that were present, whether or not a report was due.
        population: devices enrolled with it, at least as many.
        drawing: 8 bytes; of which drawing this was said, see `batch_id`.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    fingerprint: bytes
    deployment: bytes
    enrolment: bytes
    epoch: int
    batches: int
    contributors: int
    population: int
    drawing: bytes

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, enrolment=self.enrolment
        )
        if len(self.drawing) != DRAWING_BYTES:
            raise CodecError(f"drawing has {len(self.drawing)} bytes, must have {DRAWING_BYTES}")
        check_range("epoch", self.epoch, 1)
        check_range("batches", self.batches, 0, U4_MAX)
        check_range("population", self.population, 0)
        check_range("contributors", self.contributors, 0, self.population)


def encode_punctuation(punctuation: Punctuation) -> bytes:
    """The record of a punctuation."""
    return _PUNCTUATION.seal(
        punctuation.fingerprint,
        punctuation.deployment,
        punctuation.enrolment,
        punctuation.epoch,
        punctuation.contributors,
        punctuation.population,
        punctuation.batches,
        punctuation.drawing,
    )


def decode_punctuation(data: bytes) -> Punctuation:
    """The punctuation of a record.

    Raises:
        CodecError: the record is not a valid punctuation.
    """
    fingerprint, deployment, enrolment, epoch, contributors, population, batches, drawing = (
        _PUNCTUATION.open(data)
    )
    if len(data) != _PUNCTUATION.size:
        raise CodecError(f"punctuation with {len(data) - _PUNCTUATION.size} bytes of payload")
    return Punctuation(
        fingerprint, deployment, enrolment, epoch, batches, contributors, population, drawing
    )
