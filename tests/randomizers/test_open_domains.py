from __future__ import annotations

import numpy as np
import pytest

from randomizers.item_domains import Numbers
from randomizers.open_domains import OpenDomain, ShortStrings, WholeNumbers


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (WholeNumbers(1), [0, 1]),
        (WholeNumbers(61), [0, 17, (1 << 61) - 1]),
        (ShortStrings(1), ["", "a", "\x7f"]),
        (ShortStrings(7), ["", "a", "ab", "seven77", "né", "日本", "\U0001f600"]),
    ],
)
def test_values_survive(domain: OpenDomain, values: list[object]) -> None:
    numbers = domain.numbers(values)
    assert numbers.dtype == np.int64
    assert numbers.min() >= 1
    assert numbers.max() <= 1 << domain.bits
    assert [domain.value(number) for number in numbers.tolist()] == values


@pytest.mark.parametrize("buckets", [1, (1 << 24) + 1, 8.0, True])
def test_buckets_that_cannot_be_are_refused(buckets: int) -> None:
    with pytest.raises(ValueError, match="must be from 2 to 16777216"):
        Numbers(0.0, 80.0, buckets)
    assert Numbers(0.0, 80.0, 1 << 24).buckets == 1 << 24


def test_numbers_sort_as_bytes_do_and_prefixes_are_shared() -> None:
    words = ["", "a", "ab", "abc", "abd", "b", "é"]
    numbers = ShortStrings(3).numbers(words)
    assert (np.diff(numbers) > 0).all()
    assert len(set(((numbers[2:5] - 1) >> 8).tolist())) == 1


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (WholeNumbers(3), 8),
        (WholeNumbers(3), -1),
        (WholeNumbers(3), True),
        (WholeNumbers(3), "x"),
        (WholeNumbers(3), 1.0),
        (ShortStrings(2), "abc"),
        (ShortStrings(2), "日"),
        (ShortStrings(2), "a\0"),
        (ShortStrings(2), "\ud800"),
        (ShortStrings(2), 5),
    ],
)
def test_values_of_other_domains_are_refused(domain: OpenDomain, value: object) -> None:
    with pytest.raises(ValueError, match="is no"):
        domain.numbers([value])


def test_sizes_and_item_numbers_are_checked() -> None:
    for wrong in (0, 62):
        with pytest.raises(ValueError, match="bits"):
            WholeNumbers(wrong)
    for wrong in (0, 8):
        with pytest.raises(ValueError, match="bytes"):
            ShortStrings(wrong)
    for number in (0, 257):
        with pytest.raises(ValueError, match="item number"):
            ShortStrings(1).value(number)


def test_numbers_without_a_string_have_no_value() -> None:
    domain = ShortStrings(2)
    assert domain.value(1 + 0x0061) is None
    assert domain.value(1 + 0xFF00) is None


@pytest.mark.parametrize("length", range(1, 17))
def test_possible_prefixes_are_those_of_padded_bytes(length: int) -> None:
    numbers = np.arange(1 << 16)
    begun = {int(n) >> (16 - length) for n in numbers if n >> 8 or not n & 0xFF}
    prefixes = np.arange(1 << length, dtype=np.int64)
    possible = ShortStrings(2).possible(prefixes, length)
    assert set(prefixes[possible].tolist()) == begun
    assert WholeNumbers(16).possible(prefixes, length).all()
