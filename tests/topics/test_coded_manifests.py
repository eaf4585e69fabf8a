"""Manifests of windows in parts: drawings by a code, and parts that name their decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from topics.drawing_codes import CHECKS, CODE_BYTES, DrawingCode
from topics.frames import RECORD_CAP, CodecError, VersionError
from topics.manifest_parts import PART, Part, decode_part, encode_part, is_part
from topics.manifests import (
    CODED,
    PRODUCERS_MAX,
    PRODUCERS_OF_CODES_MAX,
    WHOLE,
    Fate,
    Manifest,
    decode_manifest,
    encode_manifest,
    is_short,
    read_head,
)
from topics.short_manifests import ManifestReader, base_of

Forge = Callable[..., bytes]
FINGERPRINT, DEPLOYMENT = bytes(range(16)), bytes(range(16, 32))
HEADER = 120


def coded(epoch: int, inside: NDArray[np.bool_], populations: NDArray[np.int64]) -> Manifest:
    counts, rng = populations[inside], np.random.default_rng(epoch)
    return Manifest(
        FINGERPRINT, DEPLOYMENT, epoch, Fate.RELEASED, 10 * epoch, 10 * epoch + 9, 1,
        tuple(inside.tolist()), tuple(counts.tolist()), int(counts.sum()), int(populations.sum()),
        1_700_000_000_000 + epoch,
        code=DrawingCode.of([rng.bytes(8) for _ in range(len(counts))]),
    )  # fmt: skip


def crowd(producers: int) -> NDArray[np.int64]:
    """As many devices as with producers that all differ."""
    return np.random.default_rng(3).integers(500, 1_500, producers)


def part(**said: int) -> Part:
    values = {
        "epoch": 7, "first_offset": 5, "cut_offset": 9, "timestamp": 1_700_000_000_000,
        "instance": 2, "decision": 3,
    }  # fmt: skip
    return Part(FINGERPRINT, DEPLOYMENT, **{**values, **said})


def passed(writer: ManifestReader, offset: int, said: Manifest) -> bytes:
    """The record of a manifest, which its writer has then read."""
    record = writer.encode(said)
    assert writer.decode(offset, record) == said
    return record


@pytest.mark.parametrize(("missing", "most"), [(0, 1_170), (100, 1_300), (1_000, 2_430)])
def test_ten_thousand_producers_in_parts_take_two_kilobytes(missing: int, most: int) -> None:
    populations, everybody = crowd(10_000), np.ones(10_000, np.bool_)
    writer = ManifestReader(FINGERPRINT, DEPLOYMENT)
    whole = passed(writer, 0, coded(1, everybody, populations))
    assert 41_000 < len(whole) < 42_000
    assert decode_manifest(whole) == coded(1, everybody, populations)
    inside = everybody.copy()
    inside[np.random.default_rng(4).choice(10_000, missing, replace=False)] = False
    record = passed(writer, 1, coded(2, inside, populations))
    assert len(record) <= most
    assert most <= 2_048 or missing > 100
    assert base_of(record) == 0
    assert base_of(whole) is None
    # Some have a few devices more, or less.
    populations[:300:3] += 5
    populations[1:300:3] -= 5
    assert len(passed(writer, 2, coded(3, everybody, populations))) <= 2_048
    assert len(encode_part(part())) == 92


def test_as_many_producers_as_ever_fit_a_record() -> None:
    most = PRODUCERS_OF_CODES_MAX
    assert PRODUCERS_MAX - most < 300
    populations, everybody = np.full(most, 2**32 - 1), np.ones(most, np.bool_)
    said = coded(1, everybody, populations)
    # No membership takes more than a bitmap, and a byte that says so.
    room = (most + 7) // 8 + 1 - 2
    record = encode_manifest(said)
    assert RECORD_CAP - 5 <= len(record) + room <= RECORD_CAP
    assert decode_manifest(record) == said
    assert ManifestReader(FINGERPRINT, DEPLOYMENT).encode(said) == record


def test_whole_ones_are_read_alone_and_heads_without_anything_else() -> None:
    populations, inside = crowd(300), np.ones(300, np.bool_)
    inside[[0, 299]] = False
    writer = ManifestReader(FINGERPRINT, DEPLOYMENT)
    whole, short = (passed(writer, each, coded(each, inside, populations)) for each in (1, 2))
    assert [is_short(each) for each in (whole, short)] == [False, True]
    with pytest.raises(CodecError, match=r"differs from the one at offset 1$"):
        decode_manifest(short)
    for epoch, record in ((1, whole), (2, short)):
        head = read_head(record)
        assert (head.epoch, head.instance, head.fate) == (epoch, 1, Fate.RELEASED)
        assert [head.has(place) for place in range(300)] == inside.tolist()
    record = encode_part(part())
    head = read_head(record)
    assert (head.epoch, head.instance, head.fate, head.has(1)) == (7, 2, Fate.RELEASED, False)
    assert (head.fingerprint, head.deployment) == (FINGERPRINT, DEPLOYMENT)
    assert decode_part(record) == part()
    assert [is_part(each) for each in (record, whole, short)] == [True, False, False]
    with pytest.raises(CodecError, match="part of the window that is decided at offset 3"):
        decode_manifest(record)
    with pytest.raises(VersionError, match="of version 4, expected version 5"):
        decode_part(whole)


def test_a_manifest_names_drawings_or_has_a_code_of_many() -> None:
    populations, inside = crowd(CHECKS + 1), np.ones(CHECKS + 1, np.bool_)
    said = coded(1, inside, populations)
    assert replace(said, instance=2).instance == 2, "a part of it"
    with pytest.raises(CodecError, match="instance 2 has no code of drawings of its own"):
        encode_manifest(replace(said, instance=2))
    with pytest.raises(CodecError, match="drawings are named, and there is a code of them"):
        replace(said, drawings=(bytes(8),) * (CHECKS + 1))
    inside[0] = False
    with pytest.raises(CodecError, match="number of producers of a code is 128, must be 129"):
        coded(1, inside, populations)


def test_every_byte_of_a_coded_manifest_is_checked(forge: Forge) -> None:
    """Whatever is changed is refused, or is the one spelling of something else."""
    populations, inside = crowd(200), np.ones(200, np.bool_)
    writer = ManifestReader(FINGERPRINT, DEPLOYMENT)
    whole = passed(writer, 3, coded(1, inside, populations))
    inside[[7, 150]] = False
    populations[[0, 60]] += [3, -400]
    short = passed(writer, 4, coded(2, inside, populations))
    assert short[HEADER : HEADER + 5].hex() == "0102078e01"
    assert short[HEADER + 5 + CODE_BYTES :].hex() == "00063a9f06"
    assert int.from_bytes(short[104:112], "little") == 3
    assert int.from_bytes(whole[104:112], "little") == WHOLE
    for record in (short, whole):
        other = 0
        for place in [*range(40, HEADER + 12), *range(len(record) - 20, len(record))]:
            for flip in (1, 0x80):
                if 112 <= place < HEADER:
                    continue
                forged = forge(record, (place, bytes([record[place] ^ flip])))
                try:
                    said = writer.decode(9, forged)
                except CodecError:
                    continue
                other += 1
                again = encode_manifest(said) if record is whole else writer.encode(said)
                assert again == forged
            writer = ManifestReader(FINGERPRINT, DEPLOYMENT)
            writer.decode(3, whole)
        assert other > 20


@pytest.mark.parametrize("short", [False, True])
def test_payloads_of_other_sizes_are_refused(short: bool, forge: Forge) -> None:
    writer = ManifestReader(FINGERPRINT, DEPLOYMENT)
    said = coded(1, np.ones(200, np.bool_), crowd(200))
    record = passed(writer, 3, said)
    if short:
        record = writer.encode(replace(said, epoch=2))
    for end in (HEADER, HEADER + 1, HEADER + 2, HEADER + CODE_BYTES, len(record) - 1):
        cut = forge(record[:end], (112, (end - HEADER).to_bytes(4, "little")))
        with pytest.raises(CodecError):
            writer.decode(9, cut)
    for more in (b"\0", bytes(4)):
        longer = forge(
            record + more, (112, (len(record) + len(more) - HEADER).to_bytes(4, "little"))
        )
        with pytest.raises(CodecError):
            writer.decode(9, longer)
    many = forge(record, (100, (PRODUCERS_MAX + 1).to_bytes(4, "little")))
    with pytest.raises(CodecError, match="number of producers is"):
        writer.decode(9, many)
    assert CODED.size == HEADER


def test_every_field_of_a_part_is_checked(forge: Forge) -> None:
    record = encode_part(part())
    for place, value, problem in (
        (40, 0, "epoch is 0"),
        (48, 10, "cut_offset is 9, must be 10"),
        (64, 1 << 63, "timestamp is"),
        (76, 1 << 63, "decision is"),
    ):
        with pytest.raises(CodecError, match=problem):
            decode_part(forge(record, (place, value.to_bytes(8, "little"))))
    for number in (0, 1):
        with pytest.raises(CodecError, match=f"instance is {number}, must be 2"):
            decode_part(forge(record, (72, number.to_bytes(4, "little"))))
    longer = forge(record + b"0", (PART.size - 8, (1).to_bytes(4, "little")))
    with pytest.raises(CodecError, match="with 1 bytes of payload"):
        decode_part(longer)
    with pytest.raises(CodecError, match="deployment has 15 bytes"):
        replace(part(), deployment=bytes(15))
