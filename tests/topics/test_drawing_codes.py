"""Codes of drawings: whoever knows nearly all of a row has all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.drawing_codes import CHECKS, CODE_BYTES, DrawingCode
from topics.frames import CodecError

FIELD, ELEMENTS = 0x1100B, 1 << 16


def row_of(producers: int, seed: int = 1) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(8) for _ in range(producers)]


def spoiled(
    row: Sequence[bytes], unknown: int, wrong: int, seed: int = 2
) -> tuple[list[bytes], list[int]]:
    """A row of which some are wrong, and the places of those that are known to be."""
    rng = np.random.default_rng(seed)
    found = list(row)
    places = rng.choice(len(row), unknown + wrong, replace=False).tolist()
    for place in places:
        found[place] = rng.bytes(8)
    # One that is not known to be right is taken for unknown, too.
    if unknown:
        found[places[0]] = row[places[0]]
    return found, places[:unknown]


def times(one: int, other: int) -> int:
    """In the field, as it is written down."""
    product = 0
    while other:
        product ^= one if other & 1 else 0
        one = one << 1 ^ (FIELD if one << 1 & ELEMENTS else 0)
        other >>= 1
    return product


def test_check_words_are_sums_of_powers() -> None:
    row = row_of(7)
    place, places = 1, list[int]()
    for _ in row:
        places.append(place)
        place = times(place, 2)
    words = [[0, 0, 0, 0] for _ in range(CHECKS)]
    for where, drawing in zip(places, row, strict=True):
        power = 1
        for number in range(CHECKS):
            for lane in range(4):
                symbol = int.from_bytes(drawing[2 * lane : 2 * lane + 2], "little")
                words[number][lane] ^= times(symbol, power)
            power = times(power, where)
    code = DrawingCode.of(row)
    assert code.checks == b"".join(
        symbol.to_bytes(2, "little") for word in words for symbol in word
    )
    assert code.digest == hashlib.sha256(b"".join(row)).digest()[:16]
    assert len(code.to_bytes()) == CODE_BYTES == 1040
    assert DrawingCode.from_bytes(code.to_bytes()) == code


def test_2_generates_the_field() -> None:
    element, seen = 2, 1
    while element != 1:
        element, seen = times(element, 2), seen + 1
    assert seen == ELEMENTS - 1


@pytest.mark.parametrize(
    ("unknown", "wrong", "known"),
    [
        (0, 0, True),
        (1, 0, True),
        (0, 1, True),
        (CHECKS, 0, True),
        (0, CHECKS // 2, True),
        (CHECKS // 2, CHECKS // 4, True),
        (CHECKS - 1, 0, True),
        (CHECKS - 2, 1, True),
        (CHECKS + 1, 0, False),
        (CHECKS, 1, False),
        (CHECKS - 1, 1, False),
        (0, CHECKS // 2 + 1, False),
        (0, 3 * CHECKS, False),
    ],
)
def test_as_many_may_be_unknown_as_there_are_check_words_and_half_as_many_wrong(
    unknown: int, wrong: int, known: bool
) -> None:
    row = row_of(400)
    code = DrawingCode.of(row)
    found, places = spoiled(row, unknown, wrong)
    assert code.recover(found, places) == (tuple(row) if known else None)
    assert code.is_of(row)
    assert code.is_of(found) == (found == row)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_whatever_is_recovered_is_what_was_decided(data: st.DataObject) -> None:
    """Also of rows with drawings of nothing but zeros, and of few producers."""
    drawings = st.sampled_from([bytes(8), b"\xff" * 8, b"\0\0\0\1\0\0\0\0"]) | st.binary(
        min_size=8, max_size=8
    )
    row = data.draw(st.lists(drawings, min_size=1, max_size=40))
    places = st.lists(st.integers(0, len(row) - 1), unique=True)
    unknown, wrong = data.draw(places), data.draw(places)
    found = list(row)
    for place in wrong:
        found[place] = data.draw(drawings)
    recovered = DrawingCode.of(row).recover(found, unknown)
    # At most 40 are wrong that are not known to be: that leaves no doubt.
    assert recovered == tuple(row)


def test_a_code_of_other_check_words_is_recovered_from_by_nobody() -> None:
    """Whoever forges a digest, or check words, has a window of those alone of whom one is known."""
    row = row_of(300)
    code = DrawingCode.of(row)
    for place in (0, 511, 1023, 1024, CODE_BYTES - 1):
        forged = bytearray(code.to_bytes())
        forged[place] ^= 1
        other = DrawingCode.from_bytes(bytes(forged))
        found, places = spoiled(row, 2, 1)
        assert other.recover(found, places) is None


def test_codes_and_rows_of_other_sizes_are_refused() -> None:
    code = DrawingCode.of(row_of(2)).to_bytes()
    for data in (code[:-1], code + b"0", b""):
        with pytest.raises(CodecError, match="must be 1024 and 16"):
            DrawingCode.from_bytes(data)
    with pytest.raises(CodecError, match="65536 drawings, a code has at most 65535 places"):
        DrawingCode.of([bytes(8)] * ELEMENTS)


def test_the_last_places_that_there_are_can_be_told_apart() -> None:
    row = row_of(100) * 655
    code = DrawingCode.of(row)
    found, last = list(row), len(row) - 1
    found[last], found[0], found[last - 1] = found[0], found[last], bytes(8)
    assert code.recover(found, [last - 1]) == tuple(row)
