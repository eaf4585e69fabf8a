"""Decode 100,000 damaged and forged records: each gives the same record or a `CodecError`.

Damage leaves the checksum unchanged. A forgery recomputes it, so that all other rules apply:
an accepted forgery must be a valid record with a single encoding.
"""

from __future__ import annotations

import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpstream.topics.batches import Batch, Punctuation
from dpstream.topics.chunks import Chunk
from dpstream.topics.frames import RECORD_CAP, CodecError, RecordType, kind_of
from dpstream.topics.loose_batches import Enrollments, LooseBatch, Watermark
from dpstream.topics.manifests import PRODUCERS_MAX, Manifest
from dpstream.topics.messages import Messages, split_messages
from dpstream.topics.partials import PartialPart
from dpstream.topics.sealed_batches import SealedBatch

Forge = Callable[..., bytes]

_DAMAGES = 60_000
_FORGERIES = 40_000
_WORDS_HEADER = 80


@pytest.fixture(scope="module")
def records(examples: dict[str, Any], codecs: dict[RecordType, Any]) -> list[bytes]:
    rng = np.random.default_rng(7)
    batch, chunk = examples["plain batch"], examples["chunk"]
    reports = rng.integers(0, 18, (60_000, 1), np.uint8)
    cells = np.bincount(rng.integers(0, 65_536, 600_000), minlength=65_536)
    more = [
        replace(batch, words=Messages(reports)),
        replace(batch, words=Messages.canonical(reports)),
        replace(batch, words=Messages(np.empty((0, 4), np.uint64))),
        replace(chunk, words=Messages(np.sort(rng.integers(0, 99, (50, 6), np.uint16), axis=0))),
        replace(chunk, words=split_messages(Messages.from_counts(cells))[1]),
        replace(chunk, words=Messages.canonical(rng.integers(0, 3, (500, 3), np.uint8))),
    ]
    return [codecs[_KINDS[type(record)]][0](record) for record in [*examples.values(), *more]]


_KINDS: dict[type, RecordType] = {
    Batch: RecordType.BATCH,
    Punctuation: RecordType.PUNCTUATION,
    Chunk: RecordType.CHUNK,
    Manifest: RecordType.MANIFEST,
    PartialPart: RecordType.PARTIAL,
    SealedBatch: RecordType.SEALED_BATCH,
    LooseBatch: RecordType.LOOSE_BATCH,
    Enrollments: RecordType.ENROLLMENTS,
    Watermark: RecordType.WATERMARK,
}


def _damaged(rng: random.Random, records: list[bytes]) -> bytes:
    data = rng.choice(records)
    match rng.randrange(6):
        case 0 | 1:
            flipped = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, 3, 8])):
                flipped[rng.randrange(rng.choice([len(data), min(len(data), 112)]))] ^= (
                    1 << rng.randrange(8)
                )
            return bytes(flipped)
        case 2:
            return data[: rng.randrange(len(data))]
        case 3:
            more = rng.choice([rng.randbytes(1), rng.randbytes(8), bytes(300), bytes(RECORD_CAP)])
            return data + more
        case 4:
            other = rng.choice(records)
            cut = rng.randrange(min(len(data), len(other)))
            return data[:cut] + other[cut:]
        case _:
            noise = rng.randbytes(rng.randrange(300))
            return data[: rng.choice([0, 4, 6, 8, 40, 104])] + noise


def _forged(rng: random.Random, records: list[bytes], forge: Forge) -> bytes:
    data = rng.choice(records)
    kind = kind_of(data)
    size = int.from_bytes(data[6:8], "little")
    match rng.randrange(4):
        case 0:
            edits = [_edit(rng, data, size) for _ in range(rng.choice([1, 1, 2]))]
        case 1 if kind in (RecordType.BATCH, RecordType.CHUNK):
            edits = [_reshape(rng, len(data) - size)]
        case 2 if len(data) > size:
            place = rng.randrange(size, len(data))
            width = rng.choice([1, 2, 4])
            edits = [(place, _interesting(rng, 0, width)[: len(data) - place])]
        case _:
            # A payload of another length, which the header declares.
            grown = data[: rng.randint(size, len(data))] + rng.randbytes(rng.randrange(20))
            return forge(grown, (size - 8, (len(grown) - size).to_bytes(4, "little")))
    return forge(data, *edits)


def _edit(rng: random.Random, data: bytes, size: int) -> tuple[int, bytes]:
    width = rng.choice([1, 2, 4, 8])
    place = rng.randrange(6, size - 4 - width + 1)
    # Prefer the start of a field to its middle.
    place = max(6, place - place % width) if rng.random() < 0.8 else place
    present = int.from_bytes(data[place : place + width], "little")
    return place, _interesting(rng, present, width)


def _interesting(rng: random.Random, present: int, width: int) -> bytes:
    values = [0, 1, 2, 3, present + 1, present - 1, 2 * present, -1, 1 << 8 * width - 1]
    value = rng.choice([*values, rng.getrandbits(8 * width)])
    return (value % (1 << 8 * width)).to_bytes(width, "little")


def _reshape(rng: random.Random, payload_bytes: int) -> tuple[int, bytes]:
    encoding, size, width = rng.randrange(2), rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 3, 6])
    rows = payload_bytes // (size * width + 4 * encoding)
    messages = rng.choice([rows, rng.getrandbits(40)])
    header = bytes([encoding, size]) + width.to_bytes(2, "little") + rows.to_bytes(4, "little")
    return _WORDS_HEADER, header + messages.to_bytes(8, "little")


def _decode(
    rng: random.Random, data: bytes, codecs: dict[RecordType, Any]
) -> tuple[Callable[[Any], bytes], Any]:
    kind = kind_of(data)
    if rng.random() < 0.05:
        kind = rng.choice(list(RecordType))
    encode, decode = codecs[kind]
    return encode, decode(data)


def test_damaged_records_are_rejected(records: list[bytes], codecs: dict[RecordType, Any]) -> None:
    rng = random.Random(1)
    intact, rejected = 0, 0
    originals = set(records)
    for _ in range(_DAMAGES):
        data = _damaged(rng, records)
        try:
            encode, record = _decode(rng, data, codecs)
        except CodecError as error:
            rejected += str(error) != ""
        else:
            assert data in originals
            assert encode(record) == data
            intact += 1
    # Splicing a record with itself yields the same record.
    assert intact > 100
    assert rejected == _DAMAGES - intact


def test_forged_records_are_rejected_or_decode_to_valid_records(
    records: list[bytes], codecs: dict[RecordType, Any], forge: Forge
) -> None:
    rng = random.Random(2)
    accepted = 0
    rejections: Counter[str] = Counter()
    for _ in range(_FORGERIES):
        data = _forged(rng, records, forge)
        try:
            encode, record = _decode(rng, data, codecs)
        except CodecError as error:
            rejections[re.sub(r"\d+", "N", str(error))] += 1
        else:
            assert encode(record) == data
            accepted += 1
    assert accepted > 1000
    for rule in (
        "messages have unknown encoding",
        "messages have N-byte integers",
        "messages have width N",
        "payload has N bytes; N rows of",
        "messages exceed the maximum for a record,",
        "messages; the header states",
        "a count is N",
        "must be distinct and in increasing order",
        "'epoch' is N",
        "'index' is N",
        "'total' is N",
        "'contributors' is N",
        "'population' is N",
        "offset' is N",
        "manifest has unknown window status",
        "included producers require",
        "number of producers",
        "the bitmap",
    ):
        assert any(rule in rejection for rejection in rejections), (rule, [*rejections])
    assert not any("corrupt" in rejection for rejection in rejections)


def test_forged_headers_do_not_cause_large_allocations(
    records: list[bytes], examples: dict[str, Any], codecs: dict[RecordType, Any], forge: Forge
) -> None:
    """The most expensive record is a manifest of all producers: 100 bytes per producer."""
    rng = random.Random(4)
    rows = (RECORD_CAP - 104) // 8
    quadruples = np.arange(rows, dtype=">u4").view(np.uint8).reshape(rows, 4)
    largest = replace(
        examples["counted batch"], words=Messages(quadruples, np.ones(rows, np.uint32))
    )
    everyone = replace(
        examples["manifest"],
        producers=(True,) * PRODUCERS_MAX,
        populations=(2**30,) * PRODUCERS_MAX,
        population=2**30 * PRODUCERS_MAX,
    )
    dear = [codecs[RecordType.BATCH][0](largest), codecs[RecordType.MANIFEST][0](everyone)]
    inputs = dear + [_forged(rng, dear, forge) for _ in range(40)]
    inputs += [_forged(rng, records, forge) for _ in range(500)]
    peaks = dict.fromkeys(RecordType, 0)
    tracemalloc.start()
    try:
        for data in inputs:
            kind = kind_of(data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(CodecError):
                codecs[kind][1](data)
            _, peak = tracemalloc.get_traced_memory()
            peaks[kind] = max(peaks[kind], peak - before)
    finally:
        tracemalloc.stop()
    assert peaks.pop(RecordType.MANIFEST) < 100 * PRODUCERS_MAX
    assert max(peaks.values()) < 4 * RECORD_CAP
