"""Test short manifests: they decode to whole manifests and take only a few bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.topics.frames import U4_MAX, CodecError
from dpstream.topics.manifests import (
    Manifest,
    WindowStatus,
    decode_manifest,
    encode_manifest,
    is_short,
    read_head,
)
from dpstream.topics.memberships import (
    decode_membership,
    decode_number,
    encode_membership,
    encode_number,
)
from dpstream.topics.short_manifests import BASES, ManifestReader

Forge = Callable[..., bytes]
FINGERPRINT, DEPLOYMENT = bytes(range(16)), bytes(range(16, 32))
HEADER = 120


def manifest(epoch: int, inside: NDArray[np.bool_], populations: NDArray[np.int64]) -> Manifest:
    counts = populations[inside].tolist()
    return Manifest(
        FINGERPRINT,
        DEPLOYMENT,
        epoch,
        WindowStatus.RELEASED if sum(counts) else WindowStatus.EMPTY,
        10 * epoch,
        10 * epoch + 9,
        1,
        tuple(inside.tolist()),
        tuple(counts),
        sum(counts),
        int(populations.sum()),
        1_700_000_000_000 + epoch,
    )


def reader() -> ManifestReader:
    return ManifestReader(FINGERPRINT, DEPLOYMENT)


def crowd(producers: int) -> NDArray[np.int64]:
    return np.random.default_rng(3).integers(500, 1_500, producers)


def passed(writer: ManifestReader, offset: int, said: Manifest) -> bytes:
    record = writer.encode(said)
    assert writer.decode(offset, record) == said
    return record


@pytest.mark.parametrize(("missing", "most"), [(0, 125), (100, 250), (1_000, 1_380)])
def test_short_manifest_of_ten_thousand_producers_is_small(missing: int, most: int) -> None:
    populations, everybody = crowd(10_000), np.ones(10_000, np.bool_)
    writer = reader()
    whole = passed(writer, 0, manifest(1, everybody, populations))
    assert len(whole) > 41_000
    inside = everybody.copy()
    inside[np.random.default_rng(4).choice(10_000, missing, replace=False)] = False
    assert len(passed(writer, 1, manifest(2, inside, populations))) <= most
    # Some producers have a few devices more or fewer.
    populations[:300:3] += 5
    populations[1:300:3] -= 5
    grown = passed(writer, 2, manifest(3, everybody, populations))
    assert is_short(grown)
    assert len(grown) <= 2_048


def test_complete_manifest_is_written_after_many_changes() -> None:
    populations, everybody = crowd(1_000), np.ones(1_000, np.bool_)
    writer = reader()
    records = []
    for epoch in range(1, 5):
        populations = populations + (epoch == 3)
        records.append(passed(writer, 7 * epoch, manifest(epoch, everybody, populations)))
    assert [is_short(record) for record in records] == [False, True, False, True]
    # The message for a record that cannot be read by itself names the record it requires.
    for record, base in ((records[1], 7), (records[3], 21)):
        with pytest.raises(CodecError, match=f"differences from the manifest at offset {base}$"):
            decode_manifest(record)


def test_manifest_is_never_short_for_one_producer_or_parallel_shufflers() -> None:
    writer, one = reader(), np.ones(1, np.bool_)
    for epoch in (1, 2):
        assert not is_short(passed(writer, epoch, manifest(epoch, one, crowd(1))))
    many = manifest(3, np.ones(200, np.bool_), crowd(200))
    named = replace(many, drawings=(bytes(8),) * 200)
    passed(writer, 3, many)
    assert not is_short(passed(writer, 4, named))
    assert is_short(writer.encode(many)), "manifests of the first shuffler are short"


def test_all_readers_reject_a_manifest_with_an_unread_base() -> None:
    said = manifest(2, np.ones(200, np.bool_), crowd(200))
    writer = reader()
    passed(writer, 5, replace(said, epoch=1))
    short = writer.encode(said)
    late, other = reader(), ManifestReader(FINGERPRINT, bytes(16))
    for each in (late, other):
        each.decode(5, encode_manifest(replace(said, deployment=bytes(16))))
    for stranger in (late, other, ManifestReader(FINGERPRINT, DEPLOYMENT, 0)):
        stranger.decode(6, encode_manifest(said))
        with pytest.raises(
            CodecError, match="at offset 5, which is not among the last 64 complete"
        ):
            stranger.decode(7, short)
    for offset in range(6, 6 + BASES - 1):
        writer.decode(offset, encode_manifest(said))
    assert writer.decode(100, short) == said
    writer.decode(101, encode_manifest(said))
    with pytest.raises(CodecError, match="at offset 5, which is not among"):
        writer.decode(102, short)


@st.composite
def histories(draw: st.DrawFn) -> list[Manifest]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    producers, populations = draw(st.integers(60, 300)), np.zeros(0, np.int64)
    said = []
    for epoch in range(1, draw(st.integers(2, 6))):
        more = rng.integers(0, draw(st.sampled_from([3, U4_MAX])), producers - len(populations))
        populations = np.concatenate([populations, more])
        for place in draw(st.lists(st.integers(0, producers - 1), max_size=4)):
            populations[place] = draw(st.sampled_from([0, 1, 64, U4_MAX]))
        missing = draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
        said.append(manifest(epoch, rng.random(producers) >= missing, populations))
        producers += draw(st.integers(0, 2))
    return said


@settings(max_examples=25, deadline=None)
@given(histories())
def test_manifest_reader_reproduces_written_manifests(said: list[Manifest]) -> None:
    writer, other = reader(), reader()
    for offset, each in enumerate(said):
        record = writer.encode(each)
        assert len(record) <= len(encode_manifest(each))
        assert writer.decode(offset, record) == other.decode(offset, record) == each
        head = read_head(record)
        told = head.epoch, head.window_status, head.contributors, head.instance
        assert told == (each.epoch, each.window_status, each.contributors, 1)
        assert (head.fingerprint, head.deployment) == (FINGERPRINT, DEPLOYMENT)
        places = range(len(each.producers) + 9)
        assert [head.has(place) for place in places] == [*each.producers, *[False] * 9]


@given(st.lists(st.booleans(), max_size=200) | st.lists(st.just(True), max_size=400), st.binary())
def test_membership_round_trips(inside: list[bool], after: bytes) -> None:
    written = encode_membership(np.array(inside, np.bool_))
    assert len(written) <= 1 + (len(inside) + 7) // 8
    read, end = decode_membership(written + after, len(inside))
    assert (read.tolist(), end) == (inside, len(written))


@given(st.integers(0, 2**35 - 1))
def test_variable_length_number_round_trips(number: int) -> None:
    written = encode_number(number)
    assert decode_number(b"\xff" + written + b"\x07", 1) == (number, 1 + len(written))
    assert len(written) == max(1, -(-number.bit_length() // 7))


@pytest.mark.parametrize(
    ("payload", "producers", "problem"),
    [
        (b"", 0, "payload is empty; expected a list of included producers"),
        (b"\x02\x00", 100, "membership has unknown format"),
        (b"\x00\xff", 9, "bytes; the bitmap of 9 producers requires"),
        (b"\x00\xff\x02", 9, "the included producers are not in their shortest encoding"),
        (b"\x00" + b"\xff" * 16, 128, "the included producers are not in their shortest encoding"),
        (b"\x01\x81\x00\x05", 100, "the number at byte 1 is not in its shortest encoding"),
        (b"\x01\x80\x80\x80\x80\x80\x00", 100, "the number at byte 1 is longer than 5 bytes"),
        (b"\x01\x02\x05", 100, "the number at byte 3 is longer than"),
        (b"\x01\x65", 100, "101 producers are missing; expected at most 100"),
        (b"\x01\x02\x05\x5e", 100, "include number 100; the job has only"),
    ],
)
def test_invalid_membership_is_rejected(payload: bytes, producers: int, problem: str) -> None:
    with pytest.raises(CodecError, match=problem):
        decode_membership(payload, producers)


def test_every_byte_of_a_short_manifest_is_checked(forge: Forge) -> None:
    populations, inside = crowd(200), np.ones(200, np.bool_)
    writer = reader()
    passed(writer, 3, manifest(1, inside, populations))
    inside[[7, 150]] = False
    populations[[0, 60]] += [3, -400]
    record = passed(writer, 4, manifest(2, inside, populations))
    assert record[HEADER:].hex() == "0102078e0100063a9f06"
    assert int.from_bytes(record[104:112], "little") == 3
    other = 0
    for place in range(40, len(record)):
        for flip in (1, 0x80):
            if 112 <= place < HEADER:
                continue
            forged = forge(record, (place, bytes([record[place] ^ flip])))
            try:
                said = writer.decode(9, forged)
            except CodecError:
                continue
            other += 1
            assert writer.encode(said) == forged
    assert other > 20
    for end, problem in (
        (b"\x00\x00", "included producer 60 has change 0"),
        (b"\xbe\x01\x02", "expected a nonzero change for a producer from 0"),
    ):
        size = (len(record) - HEADER + len(end)).to_bytes(4, "little")
        longer = forge(record + end, (112, size))
        with pytest.raises(CodecError, match=problem):
            writer.decode(9, longer)
    negative = encode_number(2 * 2_000 - 1)
    less = forge(record[: HEADER + 6] + negative, (112, (6 + len(negative)).to_bytes(4, "little")))
    with pytest.raises(CodecError, match="a population is out of range"):
        writer.decode(9, less)
