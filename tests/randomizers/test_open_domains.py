from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpstream.randomizers.item_domains import (
    Bits,
    Numbers,
    Points,
    StringLength,
)
from dpstream.randomizers.open_domains import OpenDomain, ShortStrings, WholeNumbers


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (WholeNumbers(1), [0, 1]),
        (WholeNumbers(61), [0, 17, (1 << 61) - 1]),
        (ShortStrings(1), ["", "a", "\x7f"]),
        (ShortStrings(7), ["", "a", "ab", "seven77", "né", "日本", "\U0001f600"]),
    ],
)
def test_values_round_trip_through_their_numbers(domain: OpenDomain, values: list[object]) -> None:
    numbers = domain.numbers(values)
    assert numbers.dtype == np.int64
    assert numbers.min() >= 1
    assert numbers.max() <= 1 << domain.bits
    assert [domain.value(number) for number in numbers.tolist()] == values


@pytest.mark.parametrize("buckets", [1, (1 << 24) + 1, 8.0, True])
def test_invalid_buckets_are_rejected(buckets: int) -> None:
    with pytest.raises(ValueError, match="expected 2 to 16777216"):
        Numbers(0.0, 80.0, buckets)
    assert Numbers(0.0, 80.0, 1 << 24).buckets == 1 << 24


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Bits(0), "'bits' is 0"),
        (lambda: Bits(62), "'bits' is 62"),
        (lambda: Bits(True), "'bits' is True"),
        (lambda: StringLength(0), "'bytes' is 0"),
        (lambda: StringLength(8), "'bytes' is 8"),
        (lambda: StringLength(1.0), "'bytes' is 1.0"),  # type: ignore[arg-type]
        (lambda: Numbers(1.0, 1.0, 2), "expected low < high"),
        (lambda: Numbers(2.0, 1.0, 2), "expected low < high"),
        (lambda: Numbers(-np.inf, 1.0, 2), "expected low < high"),
        (lambda: Numbers(0.0, np.inf, 2), "expected low < high"),
        (lambda: Points(()), "1 to 6 integers of at least 2"),
        (lambda: Points((2,) * 7), "1 to 6 integers of at least 2"),
        (lambda: Points((2, 1)), "1 to 6 integers of at least 2"),
        (lambda: Points((2, 2.0)), "1 to 6 integers of at least 2"),  # type: ignore[arg-type]
        (lambda: Points((1 << 12, (1 << 12) + 1)), "expected at most 16777216"),
    ],
)
def test_invalid_domains_are_rejected(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_numbers_that_encode_strings_preserve_order_and_shared_prefixes() -> None:
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
def test_values_of_other_domains_are_rejected(domain: OpenDomain, value: object) -> None:
    with pytest.raises(ValueError, match=r"value is .*; expected"):
        domain.numbers([value])


def test_numbers_that_encode_no_string_have_no_value() -> None:
    domain = ShortStrings(2)
    assert domain.value(1 + 0x0061) is None
    assert domain.value(1 + 0xFF00) is None
