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

from dpstream.topics.batches import Batch, Punctuation, decode_batch, encode_batch
from dpstream.topics.chunks import Chunk
from dpstream.topics.frames import (
    INTEGER_MAX,
    RECORD_CAP,
    U4_MAX,
    CodecError,
    OversizedError,
    RecordType,
    VersionError,
    kind_of,
)
from dpstream.topics.loose_batches import Enrollments, LooseBatch, Watermark
from dpstream.topics.manifests import PRODUCERS_MAX, Manifest, WindowStatus
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


# Offsets and lengths of the message fields of a batch.
ENCODING, WORD_BYTES, WIDTH, ROWS, MESSAGES, PAYLOAD_BYTES = 80, 81, 82, 84, 88, 96


def u2(value: int) -> bytes:
    return value.to_bytes(2, "little")


def u4(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u8(value: int) -> bytes:
    return value.to_bytes(8, "little")


@pytest.fixture(scope="module")
def plain(examples: dict[str, Any]) -> bytes:
    return encode_batch(examples["plain batch"])


@pytest.fixture(scope="module")
def counted(examples: dict[str, Any]) -> bytes:
    return encode_batch(examples["counted batch"])


def test_oversized_record_is_rejected_before_it_is_read(plain: bytes) -> None:
    for read in (kind_of, decode_batch):
        with pytest.raises(
            OversizedError, match=f"of {RECORD_CAP + 1} bytes exceeds the maximum, 262144"
        ):
            read(bytes(RECORD_CAP + 1))
        with pytest.raises(OversizedError):
            read(plain + bytes(RECORD_CAP))


def test_record_shorter_than_its_header_is_rejected(plain: bytes) -> None:
    for read in (kind_of, decode_batch):
        with pytest.raises(CodecError, match="record of 5 bytes is too short"):
            read(plain[:5])
    with pytest.raises(CodecError, match="batch of 103 bytes is shorter than its 104-byte header"):
        decode_batch(plain[:103])
    assert kind_of(plain[:6]) is RecordType.BATCH


def test_wrong_magic_number_is_rejected(plain: bytes) -> None:
    for read in (kind_of, decode_batch):
        with pytest.raises(CodecError, match="starts with 00707374; expected 64707374"):
            read(b"\x00" + plain[1:])


def test_version_error_states_the_found_and_supported_versions(plain: bytes) -> None:
    for read in (kind_of, decode_batch):
        with pytest.raises(VersionError, match="record has version 2; expected 1"):
            read(plain[:4] + b"\x02" + plain[5:])


def test_unknown_or_unexpected_record_type_is_rejected(
    plain: bytes, examples: dict[str, Any], codecs: dict[RecordType, Any]
) -> None:
    for read in (kind_of, decode_batch):
        for kind in (0, 10):
            with pytest.raises(CodecError, match=f"unknown kind {kind}; expected 1 to 9"):
                read(plain[:5] + bytes([kind]) + plain[6:])
    punctuation = codecs[RecordType.PUNCTUATION][0](examples["punctuation"])
    with pytest.raises(CodecError, match="record has type punctuation; expected batch"):
        decode_batch(punctuation)


def test_payload_whose_length_differs_from_the_stated_length_is_rejected(
    plain: bytes, forge: Forge
) -> None:
    with pytest.raises(CodecError, match="bytes of payload; the header states"):
        decode_batch(plain[:-1])
    with pytest.raises(CodecError, match="bytes of payload; the header states"):
        decode_batch(plain + b"\x00")
    with pytest.raises(CodecError, match=f"3 bytes of payload; the header states {U4_MAX}"):
        decode_batch(forge(plain, (PAYLOAD_BYTES, u4(U4_MAX))))
    with pytest.raises(CodecError, match="header of 96 bytes; expected 104"):
        decode_batch(forge(plain, (6, u2(96))))


def test_sizes_are_multiplied_without_overflow(plain: bytes, forge: Forge) -> None:
    rows, width, size = 2**31, 2**15, 8
    assert (rows * width * size) % 2**32 == 0
    with pytest.raises(CodecError, match=f"require {rows * width * size}$"):
        decode_batch(
            forge(plain, (WORD_BYTES, bytes([size])), (WIDTH, u2(width)), (ROWS, u4(rows)))
        )


def test_invalid_batches_are_rejected(examples: dict[str, Any], plain: bytes, forge: Forge) -> None:
    for epoch in (0, 2**63):
        expected = f"'epoch' is {epoch}; expected 1 to {INTEGER_MAX}"
        with pytest.raises(CodecError, match=expected):
            decode_batch(forge(plain, (72, u8(epoch))))
        with pytest.raises(CodecError, match=expected):
            replace(examples["plain batch"], epoch=epoch)
    for name in ("fingerprint", "deployment", "batch", "enrollment"):
        with pytest.raises(CodecError, match=f"{name} has 15 bytes; expected 16"):
            replace(examples["plain batch"], **{name: bytes(15)})


def test_oversized_batch_is_not_written(examples: dict[str, Any]) -> None:
    batch: Batch = examples["plain batch"]
    largest = replace(batch, words=Messages(np.zeros((RECORD_CAP - 104, 1), np.uint8)))
    assert len(encode_batch(largest)) == RECORD_CAP
    with pytest.raises(OversizedError, match=f"batch of {RECORD_CAP + 1} bytes"):
        encode_batch(replace(batch, words=Messages(np.zeros((RECORD_CAP - 103, 1), np.uint8))))


@pytest.mark.parametrize(
    ("name", "place", "content", "message"),
    [
        ("punctuation", 56, u8(0), "'epoch' is 0; expected 1"),
        ("punctuation", 64, u8(1001), "'contributors' is 1001; expected 0 to 1000"),
        ("punctuation", 72, u8(2**63), "'population' is 9223372036854775808; expected 0"),
        ("chunk", 40, u8(0), "'epoch' is 0"),
        ("chunk", 48, u8(2**63), "'manifest_offset' is 9223372036854775808"),
        ("chunk", 72, u4(3), "'index' is 3; expected 0 to 2"),
        ("chunk", 76, u4(0), "'total' is 0; expected 1"),
        ("partial", 40, u8(0), "'epoch' is 0"),
        ("partial", 48, u8(2**63), "'manifest_offset' is 9223372036854775808"),
        ("partial", 72, u4(2), "'index' is 2; expected 0 to 1"),
        ("partial", 76, u4(0), "'total' is 0; expected 1"),
        ("manifest", 100, u4(9), "the bitmap includes more than 9 producers"),
        ("manifest", 100, u4(2000), "payload has 14 bytes; the bitmap of 2000 producers requires"),
        ("manifest", 112, b"\x01", "populations have 12 bytes; 2 included producers require"),
    ],
)
def test_fields_of_other_records_that_are_out_of_range_are_rejected(
    examples: dict[str, Any],
    codecs: dict[RecordType, Any],
    forge: Forge,
    name: str,
    place: int,
    content: bytes,
    message: str,
) -> None:
    kind = RecordType[name.upper()]
    encode, decode = codecs[kind]
    with pytest.raises(CodecError, match=message):
        decode(forge(encode(examples[name]), (place, content)))


def test_punctuation_with_a_payload_is_rejected(
    examples: dict[str, Any], codecs: dict[RecordType, Any], forge: Forge
) -> None:
    encode, decode = codecs[RecordType.PUNCTUATION]
    with pytest.raises(CodecError, match="punctuation has 3 bytes of payload; expected none"):
        decode(forge(encode(examples["punctuation"]) + b"abc", (92, u4(3))))


def test_punctuation_with_an_invalid_version_or_draw_id_is_rejected(
    examples: dict[str, Any], codecs: dict[RecordType, Any], forge: Forge
) -> None:
    encode, decode = codecs[RecordType.PUNCTUATION]
    with pytest.raises(VersionError, match="record has version 2; expected 1"):
        decode(forge(encode(examples["punctuation"]), (4, b"\x02")))
    with pytest.raises(CodecError, match="draw ID has 7 bytes; expected 8"):
        replace(examples["punctuation"], drawing=bytes(7))


def test_fields_of_parallel_shufflers_have_a_single_encoding(
    examples: dict[str, Any], codecs: dict[RecordType, Any], forge: Forge
) -> None:
    encode, decode = codecs[RecordType.CHUNK]
    data = encode(examples["chunk of an instance"])
    for number, message in (
        (1, "chunk of version 2 is from shuffler 1"),
        (0, ("'instance' is 0; expected 1")),
    ):
        with pytest.raises(CodecError, match=message):
            decode(forge(data, (80, u4(number))))
    encode, decode = codecs[RecordType.MANIFEST]
    manifest = examples["manifest of an instance"]
    data = encode(manifest)
    with pytest.raises(CodecError, match="'instance' is 0; expected 1"):
        decode(forge(data, (104, u4(0))))
    for cut in (1, 8, 12, 20, 24):
        with pytest.raises(CodecError, match=r"populations have \d+ bytes|draw IDs for 2 included"):
            decode(forge(data[:-cut], (108, u4(25 - cut))))
    without_producers = replace(
        manifest,
        window_status=WindowStatus.EMPTY,
        producers=(False,),
        populations=(),
        drawings=(),
        contributors=0,
    )
    empty = encode(without_producers)
    with pytest.raises(CodecError, match="manifest of version 2 has no shuffler or draw IDs"):
        decode(forge(empty, (104, u4(1))))
    for drawings, message in (
        ((), "manifest of shuffler 2 has no draw IDs"),
        (manifest.drawings[:1], "got 1 draw IDs for 2 included producers"),
        ((bytes(7), bytes(8)), "a draw ID has the wrong size; expected 8 bytes"),
    ):
        with pytest.raises(CodecError, match=message):
            replace(manifest, drawings=drawings)


def test_contradictory_manifest_is_rejected(examples: dict[str, Any]) -> None:
    manifest = examples["manifest"]
    with pytest.raises(CodecError, match="got 2 populations for 3 included producers"):
        replace(manifest, populations=(1, 2))
    with pytest.raises(CodecError, match="smallest population is -1"):
        replace(manifest, populations=(1, 2, -1))
    with pytest.raises(CodecError, match=f"largest population is {2**32}"):
        replace(manifest, populations=(1, 2, 2**32))
    with pytest.raises(CodecError, match="a window with 25 contributors cannot be"):
        replace(manifest, window_status=WindowStatus.EMPTY)
