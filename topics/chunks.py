"""Chunks: the shuffler's output, with the reports in a window and no other information."""

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
from dpstream.topics.messages import MESSAGES_FIELDS, Messages, pack_messages, unpack_messages

_CHUNK = Frame(RecordType.CHUNK, f"QQ16sII{MESSAGES_FIELDS}")
# Format of parallel shufflers after the first one.
_OF_AN_INSTANCE = Frame(RecordType.CHUNK, f"QQ16sIII{MESSAGES_FIELDS}", version=2)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of the reports of a released window; an empty window has one empty chunk.

    Attributes:
        manifest_offset: Offset, in the manifest log, of the manifest that released the window.
        attempt: 16 bytes, new each time a window is written; chunks of two attempts never mix.
        total: Number of chunks in the attempt, 1 to 2^32 - 1.
        instance: Parallel shuffler that wrote the chunk, from 1; each one writes an attempt.
    """

    fingerprint: bytes
    deployment: bytes
    epoch: int
    manifest_offset: int
    attempt: bytes
    index: int
    total: int
    words: Messages
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
    fields, payload = pack_messages(chunk.words)
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
    """Decode a chunk; its messages are read-only views of `data`."""
    second = kind_of(data) is RecordType.CHUNK and version_of(data) == _OF_AN_INSTANCE.version
    frame = _OF_AN_INSTANCE if second else _CHUNK
    fingerprint, deployment, epoch, manifest_offset, attempt, index, total, *words = frame.open(
        data
    )
    instance = words.pop(0) if second else 1
    if second and instance == 1:
        raise CodecError("chunk of version 2 is from shuffler 1; expected shuffler 2 or higher")
    return Chunk(
        fingerprint,
        deployment,
        epoch,
        manifest_offset,
        attempt,
        index,
        total,
        unpack_messages(data, frame.size, *words),
        instance,
    )
