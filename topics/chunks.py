"""What the shuffle stage releases: the words of a window, in pieces that say nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from dpstream.topics.frames import (
    U4_MAX,
    CodecError,
    Frame,
    RecordType,
    check_identities,
    check_range,
    kind_of,
    version_of,
)
from dpstream.topics.words import WORDS_FIELDS, Words, pack_words, unpack_words

_CHUNK = Frame(RecordType.CHUNK, f"QQ16sII{WORDS_FIELDS}")
# Of an instance after the first one.
_OF_AN_INSTANCE = Frame(RecordType.CHUNK, f"QQ16sIII{WORDS_FIELDS}", version=2)


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
        instance: which of several shuffle instances side by side has written it, from 1 on: the
            window is what the attempts of all of them hold together.

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
    instance: int = 1

    def __post_init__(self) -> None:
        check_identities(
            fingerprint=self.fingerprint, deployment=self.deployment, attempt=self.attempt
        )
        check_range("epoch", self.epoch, 1)
        check_range("manifest_offset", self.manifest_offset, 0)
        check_range("total", self.total, 1, U4_MAX)
        check_range("index", self.index, 0, self.total - 1)
        check_range("instance", self.instance, 1, U4_MAX)


def encode_chunk(chunk: Chunk) -> bytes:
    """The record of a chunk.

    Raises:
        OversizedError: it would be larger than `RECORD_CAP`; see `split_words`.
        CodecError: its words cannot be written in one record.
    """
    fields, payload = pack_words(chunk.words)
    said = (
        chunk.fingerprint,
        chunk.deployment,
        chunk.epoch,
        chunk.manifest_offset,
        chunk.attempt,
        chunk.index,
        chunk.total,
    )
    if chunk.instance == 1:
        return _CHUNK.seal(*said, *fields, payload=payload)
    return _OF_AN_INSTANCE.seal(*said, chunk.instance, *fields, payload=payload)


def decode_chunk(data: bytes) -> Chunk:
    """The chunk of a record; its words are read-only views of `data`.

    Raises:
        CodecError: the record is not a valid chunk.
    """
    second = kind_of(data) is RecordType.CHUNK and version_of(data) == _OF_AN_INSTANCE.version
    frame = _OF_AN_INSTANCE if second else _CHUNK
    fingerprint, deployment, epoch, manifest_offset, attempt, index, total, *words = frame.open(
        data
    )
    instance = words.pop(0) if second else 1
    if second and instance == 1:
        raise CodecError("a chunk of the first instance, in the form of the others")
    return Chunk(
        fingerprint,
        deployment,
        epoch,
        manifest_offset,
        attempt,
        index,
        total,
        unpack_words(data, frame.size, *words),
        instance,
    )
