"""Test draws from bytes: exactly uniform, with the stated number of bytes in the stated order."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from dpstream.randomizers.byte_generator import ByteGenerator
from dpstream.randomizers.draws import draw_categories, random_bits


def of(data: bytes) -> tuple[ByteGenerator, Callable[[], int]]:
    taken = 0

    def read(count: int) -> bytes:
        nonlocal taken
        taken += count
        if taken > len(data):
            raise EOFError
        return data[taken - count : taken]

    return ByteGenerator(read), lambda: taken


def test_integers_are_equally_likely_in_all_one_byte_ranges() -> None:
    for values in range(1, 257):
        drawn: Counter[int] = Counter()
        rejected = 0
        for byte in range(256):
            generator, _ = of(bytes([byte]))
            try:
                drawn[int(generator.integers(3, 3 + values))] += 1
            except EOFError:
                rejected += 1
        assert sorted(drawn) == list(range(3, 3 + values))
        assert len(set(drawn.values())) == 1
        assert rejected < values


@pytest.mark.parametrize("values", [257, 1000, 40_000, 65_535, 65_536])
def test_integers_are_equally_likely_in_two_byte_ranges(values: int) -> None:
    # All pairs of bytes, then zeros to replace the rejected pairs.
    pairs = np.arange(1 << 16, dtype="<u2")
    kept = (1 << 16) // values * values
    generator, taken = of(pairs.tobytes() + bytes(2 * (1 << 16)))
    drawn = generator.integers(0, values, kept, dtype=np.uint32)
    assert (np.bincount(drawn) == kept // values).all()
    assert taken() == 2 * kept  # rejected pairs come last and are not read


@pytest.mark.parametrize(
    ("values", "width"),
    [
        *((1, 0), (2, 1), (256, 1), (257, 2), (1 << 16, 2)),
        *((1 << 16 | 1, 4), (1 << 32, 4), ((1 << 32) + 1, 8), (1 << 62, 8), (1 << 64, 8)),
    ],
)
def test_drawing_an_integer_consumes_the_fewest_bytes_that_suffice(values: int, width: int) -> None:
    generator, taken = of(b"\x01" + bytes(63))
    assert int(generator.integers(0, values, dtype=np.uint64)) == (width > 0)
    assert taken() == width


def test_array_elements_are_drawn_in_order_from_little_endian_bytes() -> None:
    # For 5 values, byte 255 is rejected, and the element is redrawn before the next one.
    data = bytes([255, 0, 1, 255, 255, 2, 3, 4, 0, 0])
    generator, taken = of(data)
    assert generator.integers(0, 5, (2, 3)).tolist() == [[0, 1, 2], [3, 4, 0]]
    assert taken() == 9
    one_by_one, _ = of(data)
    assert [int(one_by_one.integers(0, 5)) for _ in range(6)] == [0, 1, 2, 3, 4, 0]
    assert int(of(b"\x01\x02\x03\x04")[0].integers(0, 1 << 32)) == 0x04030201


def test_only_values_from_the_largest_multiple_of_the_range_on_are_redrawn() -> None:
    generator, taken = of(b"".join(v.to_bytes(8, "little") for v in (3 << 62, (3 << 62) - 1)))
    assert int(generator.integers(0, 3 << 62, dtype=np.uint64)) == (3 << 62) - 1
    assert taken() == 16


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_full_range_of_a_dtype_can_be_drawn(dtype: type[np.integer]) -> None:
    limits = np.iinfo(dtype)
    generator, _ = of(bytes(8) + b"\xff" * 8)
    least = generator.integers(limits.min, limits.max, dtype=dtype, endpoint=True)
    assert least == limits.min
    assert least.dtype == dtype
    of_largest, _ = of(b"\xff" * 8)
    assert of_largest.integers(limits.min, int(limits.max) + 1, dtype=dtype) == limits.max


def test_invalid_ranges_and_short_reads_are_rejected() -> None:
    generator, taken = of(bytes(16))
    with pytest.raises(ValueError, match=r"range \[5, 5\) is empty"):
        generator.integers(5, 5)
    with pytest.raises(ValueError, match="integers from"):
        generator.integers(0, 257, dtype=np.uint8)
    with pytest.raises(ValueError, match="read 7 random bytes; expected 8"):
        ByteGenerator(lambda count: bytes(count - 1)).bytes(8)
    assert taken() == 0
    assert generator.integers(0, 7, 0).shape == (0,)
    assert generator.bytes(0) == b""
    assert taken() == 0


def test_single_argument_of_integers_is_the_upper_bound() -> None:
    assert of(b"\x06")[0].integers(7) == 6
    assert of(b"\x07")[0].integers(7, endpoint=True) == 7


def test_bits_and_categories_consume_8_bytes_each() -> None:
    generator, taken = of(b"\xa0" + bytes(7) + ((1 << 63) + 1).to_bytes(8, "little"))
    assert random_bits(generator, 4).tolist() == [1, 0, 1, 0]  # type: ignore[arg-type]
    assert draw_categories([1, 1], 1, generator).tolist() == [1]  # type: ignore[arg-type]
    assert taken() == 16


def test_every_pair_of_values_occurs_in_consecutive_draws() -> None:
    drawn = ByteGenerator(os.urandom).integers(0, 3, 3_000)
    pairs = Counter(itertools.pairwise(drawn.tolist()))
    assert len(pairs) == 9
    assert min(pairs.values()) > 150  # expected: 333, standard deviation: 18
