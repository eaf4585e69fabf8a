"""What a producer sends for an epoch: batches of reports, and a punctuation that ends them."""

from __future__ import annotations

from dataclasses import dataclass

from topics.fixed_sizes import FixedSize, pack_sized, unpack_sized
from topics.frames import (
    U4_MAX,
    CodecError,
    Frame,
    Kind,
    check_identities,
    check_range,
    kind_of,
    version_of,
)
from topics.words import WORDS_FIELDS, Words

_BATCH = Frame(Kind.BATCH, f"16s16sQ{WORDS_FIELDS}")
# That of earlier versions, which does not say of which drawing it is, and the present one.
_ANY_DRAWING = Frame(Kind.PUNCTUATION, "16sQQQI")
_OWN_DRAWING = Frame(Kind.PUNCTUATION, "16sQQQI8s", version=2)

DRAWING_BYTES = 8
# Says that an id names its drawing: those of earlier versions are random throughout.
_NAMES_DRAWING = b"draw"


def batch_id(drawing: bytes, index: int) -> bytes:
    """The id of a batch: which drawing of an epoch's reports it is of, and which of its batches.

    Two producers with copies of one folder both draw an epoch. Their batches must never be put
    together, nor with the other's punctuation: some devices would be in twice, others not at all,
    and the numbers of devices would be of other ones.

    Args:
        drawing: 8 random bytes, new whenever an epoch is drawn.
        index: of the batch, from 0.

    >>> drawing_of(batch_id(bytes(8), 3)) == bytes(8), drawing_of(bytes(16)) is None
    (True, True)
    """
    return drawing + _NAMES_DRAWING + index.to_bytes(4, "little")


def drawing_of(batch: bytes) -> bytes | None:
    """The drawing of a batch id; None for those of earlier versions, which name none."""
    mark = batch[DRAWING_BYTES : DRAWING_BYTES + len(_NAMES_DRAWING)]
    return batch[:DRAWING_BYTES] if mark == _NAMES_DRAWING else None


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
    fingerprint, deployment, batch, enrolment, epoch, *words = _BATCH.open(data)
    return Batch(
        fingerprint, deployment, batch, enrolment, epoch, *unpack_sized(data, _BATCH.size, *words)
    )


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
        drawing: 8 bytes; of which drawing this was said, see `batch_id`. None where it does not
            say so, as in earlier versions.

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
    drawing: bytes | None = None

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, enrolment=self.enrolment
        )
        if self.drawing is not None and len(self.drawing) != DRAWING_BYTES:
            raise CodecError(f"drawing has {len(self.drawing)} bytes, must have {DRAWING_BYTES}")
        check_range("epoch", self.epoch, 1)
        check_range("batches", self.batches, 0, U4_MAX)
        check_range("population", self.population, 0)
        check_range("contributors", self.contributors, 0, self.population)


def encode_punctuation(punctuation: Punctuation) -> bytes:
    """The record of a punctuation."""
    said = (
        punctuation.fingerprint,
        punctuation.deployment,
        punctuation.enrolment,
        punctuation.epoch,
        punctuation.contributors,
        punctuation.population,
        punctuation.batches,
    )
    if punctuation.drawing is None:
        return _ANY_DRAWING.seal(*said)
    return _OWN_DRAWING.seal(*said, punctuation.drawing)


def decode_punctuation(data: bytes) -> Punctuation:
    """The punctuation of a record, of this version or an earlier one.

    Raises:
        CodecError: the record is not a valid punctuation.
    """
    names_drawing = kind_of(data) is Kind.PUNCTUATION and version_of(data) == _OWN_DRAWING.version
    frame = _OWN_DRAWING if names_drawing else _ANY_DRAWING
    fingerprint, deployment, enrolment, epoch, contributors, population, batches, *drawing = (
        frame.open(data)
    )
    if len(data) != frame.size:
        raise CodecError(f"punctuation with {len(data) - frame.size} bytes of payload")
    return Punctuation(
        fingerprint, deployment, enrolment, epoch, batches, contributors, population, *drawing
    )
