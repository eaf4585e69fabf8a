"""Test items and numbers: parsing of text, and errors."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.item_domains import (
    Bits,
    ItemDomain,
    Numbers,
    Points,
    StringLength,
    Strings,
)

LABELS = ("a", "b c")


@pytest.mark.parametrize(
    ("domain", "texts", "items"),
    [
        (LABELS, ["b c", " a ", ""], [2, 1, 0]),
        (Bits(8), ["0", "255", " 7 ", ""], [1, 256, 8, 0]),
        (Bits(61), [str(2**61 - 1)], [2**61]),
        (Strings(StringLength(3)), ["abc", "a", "", "é"], [6382180, 6356993, 0, 12822785]),
        (Numbers(0, 80, 8), ["0", "79.9", "", "  "], [1, 8, 0, 0]),
        (Points((3, 4)), ["0;0", "2;3", " 1;1 ", ""], [1, 12, 6, 0]),
        (Points((64,)), ["63", "0"], [64, 1]),
    ],
    ids=str,
)
def test_every_nonempty_text_is_an_item(
    domain: ItemDomain, texts: list[str], items: list[int]
) -> None:
    known = SetDomain(domain, 2)
    values, problems = known.parse(texts)
    assert problems == {}
    assert values.dtype == np.int64
    assert values.tolist() == items
    assert max(items) < known.size


@pytest.mark.parametrize(
    ("domain", "texts", "complaint"),
    [
        (LABELS, ["c", "B c", "a;b"], "is not in the domain"),
        (
            Bits(8),
            ["256", "-1", "x", "1.5", "1e3", "0x10"],
            ("; expected an integer from 0 to 2"),
        ),
        (
            Strings(StringLength(3)),
            ["abcd", "日本", "a\0"],
            "; expected a string of at most 3 UTF-8 bytes, without NUL characters",
        ),
        (Numbers(0, 80, 8), ["80", "-0.1", "inf"], "expected at least 0 and below"),
        (Numbers(0, 80, 8), ["x", "nan", "1_0"], "is not a number"),
        (
            Points((3, 4)),
            ["3;0", "0;4", "-1;0", "1", "1;2;0", "a;b", ";", "1.0;2", "9" * 30 + ";1"],
            "is not a point of the grid 3 x 4; expected one like",
        ),
    ],
    ids=str,
)
def test_invalid_item_is_reported_with_its_position(
    domain: ItemDomain, texts: list[str], complaint: str
) -> None:
    good = {"a", "0", "0;0"}
    _, problems = SetDomain(domain, 2).parse(["", *texts, *texts])
    assert sorted(problems) == list(range(1, 1 + 2 * len(texts)))
    assert not good & set(texts)
    for problem in problems.values():
        assert complaint in problem
        assert problem.count("value ") == 1


@pytest.mark.parametrize(
    ("domain", "labels"),
    [
        (LABELS, LABELS),
        (Bits(2), ("0", "1", "2", "3")),
        (Numbers(0, 8, 2), ("0:4", "4:8")),
        (Points((2, 2)), ("0;0", "0;1", "1;0", "1;1")),
    ],
    ids=str,
)
def test_items_have_the_expected_labels(domain: ItemDomain, labels: tuple[str, ...]) -> None:
    known = SetDomain(domain, 1)
    assert known.items == labels
    assert tuple(known.label(item) for item in range(1, known.size)) == labels
    if not isinstance(domain, Numbers):
        assert known.parse(labels)[0].tolist() == list(range(1, known.size))


def test_large_domains_label_items_on_demand() -> None:
    assert SetDomain(Bits(30), 1).items is None
    assert SetDomain(Bits(30), 1).label(1 << 30) == str((1 << 30) - 1)
    strings = SetDomain(Strings(StringLength(3)), 1)
    assert strings.items is None
    assert strings.label(6382180) == "abc"
    # The text bytes are invalid: no user has this item, but noise can produce it.
    assert strings.label(1 << 24) == f"#{1 << 24}"


def test_value_lies_in_the_bucket_that_starts_at_or_just_below_it() -> None:
    domain = NumericDomain(low=-1, high=1, buckets=8)
    texts = ["-1", "-0.76", "-0.75", "0", "0.999", " 0.25 ", "1e-3", "+0.5"]
    values, problems = domain.parse(texts)
    assert values.tolist() == [1, 1, 2, 5, 8, 6, 5, 7]
    assert values.dtype == np.int16
    assert problems == {}


def test_largest_value_below_the_end_lies_in_the_last_bucket() -> None:
    domain = NumericDomain(low=0, high=0.3, buckets=4096)
    values, problems = domain.parse([repr(float(np.nextafter(0.3, 0)))])
    assert values.tolist() == [4096]
    assert problems == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("80", "value '80' is out of range; expected at least 0 and below 80"),
        ("-0.1", "value '-0.1' is out of range; expected at least 0 and below 80"),
        ("inf", "value 'inf' is out of range; expected at least 0 and below 80"),
        ("ten", "value 'ten' is not a number"),
        ("", "value '' is not a number"),
        ("nan", "value 'nan' is not a number"),
        ("1_0", "value '1_0' is not a number"),
    ],
)
def test_invalid_values_are_reported_by_row(text: str, reason: str) -> None:
    assert NumericDomain(0, 80, 8).parse(["1", text, "2"])[1] == {1: reason}


def test_bucket_label_is_its_start_and_end() -> None:
    domain = NumericDomain(0, 1, 4)
    assert domain.items == ("0:0.25", "0.25:0.5", "0.5:0.75", "0.75:1")
    assert domain.size == 5
    assert domain.width == 0.25
    assert [domain.edge(index) for index in (0, 2.5, 4)] == [0, 0.625, 1]
