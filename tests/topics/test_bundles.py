"""Bundles: records of many, byte by byte what they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.bundles import (
    BUNDLE_ROOM,
    Bundle,
    bundled_bytes,
    decode_bundle,
    encode_bundle,
    records_in,
    split_records,
)
from topics.frames import RECORD_CAP, CodecError, OversizedError

IDENTITY = bytes(range(16)), bytes(range(16, 32))
HEADER = 52

records = st.lists(st.binary(max_size=300), min_size=1, max_size=20)


@given(records)
def test_records_survive_their_bundle(held: list[bytes]) -> None:
    bundle = Bundle(*IDENTITY, tuple(held))
    written = encode_bundle(bundle)
    assert decode_bundle(written) == bundle
    assert records_in(written) == tuple(held)
    assert len(written) == HEADER + sum(map(bundled_bytes, held))


@given(records, st.integers(1, 700))
def test_parts_are_as_large_as_there_is_room(held: list[bytes], room: int) -> None:
    parts = list(split_records(held, room))
    assert [record for part in parts for record in part] == held
    sizes = [sum(map(bundled_bytes, part)) for part in parts]
    assert all(size <= room or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    for size, following in zip(sizes, parts[1:], strict=False):
        assert size + bundled_bytes(following[0]) > room, "no part ends before it must"


def test_what_is_no_bundle_stands_for_itself(forge: Callable[..., bytes]) -> None:
    written = encode_bundle(Bundle(*IDENTITY, (b"a", b"bc")))
    for damaged in (b"", b"dpst", b"neither", written[:-1], written + b"\0", written[:55]):
        assert records_in(damaged) == (damaged,)
    cases = [
        ((40, b"\x03"), "bundle of 2 records, its header says 3"),
        ((HEADER, b"\x05"), "bundle ends within its record 1"),
        ((HEADER + 2, b"\x01"), "bundle ends within its record 3"),
    ]
    for edit, problem in cases:
        forged = forge(written, edit)
        with pytest.raises(CodecError, match=problem):
            decode_bundle(forged)
        assert records_in(forged) == (forged,)
    with pytest.raises(CodecError, match="number of records is 0"):
        Bundle(*IDENTITY, ())


def test_a_bundle_is_no_larger_than_a_record_may_be() -> None:
    most = bytes(BUNDLE_ROOM - 3)
    assert bundled_bytes(most) == BUNDLE_ROOM
    assert len(encode_bundle(Bundle(*IDENTITY, (most,)))) == RECORD_CAP
    with pytest.raises(OversizedError, match="write it in parts"):
        encode_bundle(Bundle(*IDENTITY, (most, b"")))
