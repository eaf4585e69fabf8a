"""Fixtures for binary records: codecs, one example per type, and a forger of valid checksums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from crc32c import crc32c

from dpstream.topics.batches import (
    Batch,
    Punctuation,
    decode_batch,
    decode_punctuation,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.frames import RecordType
from dpstream.topics.loose_batches import (
    Enrollments,
    LooseBatch,
    Watermark,
    decode_enrollments,
    decode_loose_batch,
    decode_watermark,
    encode_enrollments,
    encode_loose_batch,
    encode_watermark,
)
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest, encode_manifest
from dpstream.topics.messages import Messages
from dpstream.topics.partials import PartialPart, decode_partial, encode_partial
from dpstream.topics.sealed_batches import SealedBatch, decode_sealed_batch, encode_sealed_batch

Codec: TypeAlias = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]

FINGERPRINT, DEPLOYMENT, BATCH, ENROLLMENT, ATTEMPT = (
    bytes(range(start, start + 16)) for start in range(0x10, 0x60, 0x10)
)

ROWS = np.arange(2 * 27, dtype=np.uint8).reshape(2, 27)


@pytest.fixture(scope="session")
def codecs() -> dict[RecordType, Codec]:
    return {
        RecordType.BATCH: (encode_batch, decode_batch),
        RecordType.PUNCTUATION: (encode_punctuation, decode_punctuation),
        RecordType.MANIFEST: (encode_manifest, decode_manifest),
        RecordType.CHUNK: (encode_chunk, decode_chunk),
        RecordType.PARTIAL: (encode_partial, decode_partial),
        RecordType.SEALED_BATCH: (encode_sealed_batch, decode_sealed_batch),
        RecordType.LOOSE_BATCH: (encode_loose_batch, decode_loose_batch),
        RecordType.ENROLLMENTS: (encode_enrollments, decode_enrollments),
        RecordType.WATERMARK: (encode_watermark, decode_watermark),
    }


@pytest.fixture(scope="session")
def examples() -> dict[str, Any]:
    counts = np.array([5, 1, 2**32 - 1], np.uint32)
    return {
        "plain batch": Batch(
            FINGERPRINT,
            DEPLOYMENT,
            BATCH,
            ENROLLMENT,
            7,
            Messages(np.array([[1], [3], [1]], np.uint8)),
        ),
        "counted batch": Batch(
            FINGERPRINT,
            DEPLOYMENT,
            BATCH,
            ENROLLMENT,
            7,
            Messages(np.array([[1, 0x201], [1, 0x302], [2, 0]], np.uint16), counts),
        ),
        "loose batch": LooseBatch(FINGERPRINT, DEPLOYMENT, 7, None, ROWS[:, :13]),
        "sealed loose batch": LooseBatch(FINGERPRINT, DEPLOYMENT, 7, BATCH[:8], ROWS),
        "enrollments": Enrollments(
            FINGERPRINT, DEPLOYMENT, 7, np.array([5, 2**64 - 1, 5], np.uint64)
        ),
        "watermark": Watermark(FINGERPRINT, DEPLOYMENT, ENROLLMENT, 7),
        "punctuation": Punctuation(FINGERPRINT, DEPLOYMENT, ENROLLMENT, 7, 2, 900, 1000, BATCH[:8]),
        "chunk": Chunk(
            FINGERPRINT,
            DEPLOYMENT,
            7,
            11,
            ATTEMPT,
            1,
            3,
            Messages(np.array([[2**32 - 1], [5]], np.uint32)),
        ),
        "manifest": Manifest(
            FINGERPRINT,
            DEPLOYMENT,
            epoch=7,
            window_status=WindowStatus.SUPPRESSED,
            first_offset=100,
            cut_offset=120,
            first_epoch=2,
            producers=(True, False, True, *[False] * 6, True),
            populations=(10, 20, 0x01020304),
            contributors=25,
            population=0x01020304 + 90,
            timestamp=1_700_000_000_000,
        ),
        "chunk of an instance": Chunk(
            FINGERPRINT,
            DEPLOYMENT,
            7,
            11,
            ATTEMPT,
            1,
            3,
            Messages(np.array([[2**32 - 1], [5]], np.uint32)),
            instance=2,
        ),
        "manifest of an instance": Manifest(
            FINGERPRINT,
            DEPLOYMENT,
            epoch=7,
            window_status=WindowStatus.RELEASED,
            first_offset=100,
            cut_offset=120,
            first_epoch=2,
            producers=(True, False, True),
            populations=(10, 20),
            contributors=25,
            population=90,
            timestamp=1_700_000_000_000,
            instance=2,
            drawings=(BATCH[:8], BATCH[8:]),
        ),
        "partial": PartialPart(FINGERPRINT, DEPLOYMENT, 7, 11, ATTEMPT, 0, 2, b"state"),
        "sealed batch": SealedBatch(FINGERPRINT, DEPLOYMENT, 7, BATCH[:8], bytes(range(56))),
    }


@pytest.fixture(scope="session")
def forge() -> Callable[..., bytes]:
    """Overwrite bytes of a record at the given positions and recompute its checksum."""

    def write(data: bytes, *edits: tuple[int, bytes]) -> bytes:
        forged = bytearray(data)
        for place, content in edits:
            forged[place : place + len(content)] = content
        size = int.from_bytes(data[6:8], "little")
        checksum = crc32c(bytes(forged[size:]), crc32c(bytes(forged[: size - 4])))
        forged[size - 4 : size] = checksum.to_bytes(4, "little")
        return bytes(forged)

    return write
