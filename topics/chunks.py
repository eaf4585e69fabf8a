"""What the shuffle stage releases: the words of a window, in pieces that say nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from topics.frames import U4_MAX, Frame, Kind, check_identities, check_range
from topics.words import WORDS_FIELDS, Words, pack_words, unpack_words

_CHUNK = Frame(Kind.CHUNK, f"QQ16sII{WORDS_FIELDS}")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a released window.

    Attributes:
        fingerprint: 16 bytes.
        deployment: 16 bytes.
        epoch: at least 1.
        manifest_offset: where in the manifest log the window was decided.
        attempt: 16 bytes, new for every writing of a window; chunks of two attempts never mix.
        index: of the piece, from 0.
        total: pieces of the attempt, 1 to 2^32 - 1; an empty window has one, empty.
        words: the reports.

    Raises:
        CodecError: a field has another length or lies outside its range.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    manifest_offset: int
    attempt: bytes
    index: int
    total: int
    words: Words

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, attempt=self.attempt
        )
        check_range("epoch", self.epoch, 1)
        check_range("manifest_offset", self.manifest_offset, 0)
        check_range("total", self.total, 1, U4_MAX)
        check_range("index", self.index, 0, self.total - 1)


def encode_chunk(chunk: Chunk) -> bytes:
    """The record of a chunk.

    Raises:
        OversizedError: it would be larger than `RECORD_CAP`; see `split_words`.
        CodecError: its words cannot be written in one record.
    """
    fields, payload = pack_words(chunk.words)
    return _CHUNK.seal(
        chunk.fingerprint,
        chunk.deployment,
        chunk.epoch,
        chunk.manifest_offset,
        chunk.attempt,
        chunk.index,
        chunk.total,
        *fields,
        payload=payload,
    )


def decode_chunk(data: bytes) -> Chunk:
    """The chunk of a record; its words are read-only views of `data`.

    Raises:
        CodecError: the record is not a valid chunk.
    """
    fingerprint, deployment, epoch, manifest_offset, attempt, index, total, *words = _CHUNK.open(
        data
    )
    return Chunk(
        fingerprint,
        deployment,
        epoch,
        manifest_offset,
        attempt,
        index,
        total,
        unpack_words(data, _CHUNK.size, *words),
    )
