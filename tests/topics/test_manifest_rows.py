"""Test that bulk decoding of manifests matches decoding one by one, or falls back to it."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.topics.frames import INTEGER_MAX, CodecError
from dpstream.topics.manifest_rows import PRODUCERS, membership_of, read_rows
from dpstream.topics.manifests import (
    MANIFEST_STATUSES,
    Manifest,
    WindowStatus,
    decode_manifest,
    encode_manifest,
)

ROWS = 12


def manifest(
    epoch: int, producers: int = 11, missing: int = 3, drawings: tuple[bytes, ...] = ()
) -> Manifest:
    inside = tuple(number != missing for number in range(producers))
    populations = tuple(range(epoch, epoch + sum(inside)))
    window_status = MANIFEST_STATUSES[epoch % len(MANIFEST_STATUSES)]
    return Manifest(
        bytes(range(16)),
        bytes(range(16, 32)),
        epoch,
        window_status,
        7 * epoch,
        7 * epoch + epoch % 4,
        2,
        inside,
        populations,
        0 if window_status is WindowStatus.EMPTY else 1 + epoch % 2,
        sum(populations) + epoch % 3,
        10**12 + epoch,
        drawings=drawings,
    )


def written(rows: int = ROWS, producers: int = 11) -> list[bytes]:
    return [encode_manifest(manifest(epoch, producers)) for epoch in range(2, 2 + rows)]


@pytest.mark.parametrize("producers", [1, 3, 8, 11, PRODUCERS])
def test_bulk_decoding_matches_single_decoding(producers: int) -> None:
    records = written(producers=producers)
    rows = read_rows(records)
    assert rows is not None
    for row, record in enumerate(records):
        alone = decode_manifest(record)
        assert rows.manifest(row) == alone
        assert rows.epochs[row] == alone.epoch
        assert rows.first_offsets[row] == alone.first_offset
        assert rows.cut_offsets[row] == alone.cut_offset
        assert MANIFEST_STATUSES[rows.statuses[row]] is alone.window_status
        assert membership_of(record) == membership_of(records[0])


def test_bulk_decoding_rejects_any_altered_byte() -> None:
    records, rng = written(), np.random.default_rng(1)
    together = 0
    for place in range(len(records[0])):
        row = int(rng.integers(1, ROWS))
        damaged = bytearray(records[row])
        damaged[place] ^= 1 << int(rng.integers(8))
        given = [*records]
        given[row] = bytes(damaged)
        with pytest.raises(CodecError):
            decode_manifest(given[row])
        assert read_rows(given) is None
        together += membership_of(given[row]) == membership_of(records[0])
    assert together > len(records[0]) // 2, "most altered records would be decoded in bulk"


def fields_of(**changes: int) -> bytes:
    from dpstream.topics.manifests import _MANIFEST

    names = (
        "epoch", "first_offset", "cut_offset", "first_epoch", "contributors", "population",
        "timestamp", "window_status", "producers",
    )  # fmt: skip
    record = encode_manifest(manifest(6))
    fingerprint, deployment, *numbers = _MANIFEST.open(record)
    values = dict(zip(names, numbers, strict=True)) | changes
    payload = record[_MANIFEST.size :]
    return _MANIFEST.seal(fingerprint, deployment, *values.values(), payload=payload)


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 1},
        {"epoch": 0},
        {"epoch": INTEGER_MAX + 1},
        {"first_epoch": 0, "epoch": 0},
        {"first_epoch": 0},
        {"first_offset": 1_000},
        {"first_offset": INTEGER_MAX + 1, "cut_offset": INTEGER_MAX + 1},
        {"cut_offset": INTEGER_MAX + 1},
        {"contributors": 1_000_000, "population": 1_000_000},
        {"contributors": 0},
        {"population": 10},
        {"population": INTEGER_MAX + 1},
        {"timestamp": INTEGER_MAX + 1},
        {"window_status": 0},
        {"window_status": 4},
        {"window_status": 3},
        {"producers": 10},
        {"producers": 2**31},
    ],
    ids=str,
)
def test_contradictory_fields_are_rejected(changes: dict[str, int]) -> None:
    records, wrong = written(), fields_of(**changes)
    assert fields_of() == records[4]
    with pytest.raises(CodecError):
        decode_manifest(wrong)
    assert read_rows([*records[:4], wrong, *records[5:]]) is None
    assert read_rows([wrong, *records[:3]]) is None
    membership_of(wrong)


@pytest.mark.parametrize(
    "other",
    [
        encode_manifest(manifest(5, missing=4)),
        encode_manifest(manifest(5, producers=12)),
        encode_manifest(manifest(5, drawings=(bytes(8),) * 10)),
        b"",
        b"dpst",
    ],
    ids=["membership", "producers", "parallel shufflers", "empty", "truncated"],
)
def test_manifests_with_unequal_membership_are_not_decoded_in_bulk(other: bytes) -> None:
    records = written()
    assert read_rows([*records, other]) is None
    assert read_rows([other, *records]) is None
    whole = len(other) > len(b"dpst") and not decode_manifest(other).of_instances
    assert (read_rows([other, other]) is not None) == whole
    assert membership_of(other) != membership_of(records[0])


def test_manifest_with_one_more_absent_producer_is_not_decoded_in_bulk() -> None:
    records, other = written(), fields_of(producers=12)
    assert len(decode_manifest(other).producers) == 12
    assert read_rows([*records, other]) is None


def test_manifests_of_many_producers_are_not_decoded_in_bulk() -> None:
    assert read_rows(written(producers=PRODUCERS + 1)) is None
