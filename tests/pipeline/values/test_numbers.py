"""Numbers as values: their buckets, their labels, and what is said about wrong ones."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.values.numbers import NumericDomain


def test_a_value_lies_in_the_bucket_that_begins_at_or_below_it() -> None:
    domain = NumericDomain(low=-1, high=1, buckets=8)
    texts = ["-1", "-0.76", "-0.75", "0", "0.999", " 0.25 ", "1e-3", "+0.5"]
    values, problems = domain.parse(texts)
    assert values.tolist() == [1, 1, 2, 5, 8, 6, 5, 7]
    assert values.dtype == np.int16
    assert problems == {}


def test_the_largest_value_below_the_end_lies_in_the_last_bucket() -> None:
    domain = NumericDomain(low=0, high=0.3, buckets=4096)
    values, problems = domain.parse([repr(float(np.nextafter(0.3, 0)))])
    assert values.tolist() == [4096]
    assert problems == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("80", "value '80' is not from 0 to below 80"),
        ("-0.1", "value '-0.1' is not from 0 to below 80"),
        ("inf", "value 'inf' is not from 0 to below 80"),
        ("ten", "value 'ten' is not a number"),
        ("", "value '' is not a number"),
        ("nan", "value 'nan' is not a number"),
        ("1_0", "value '1_0' is not a number"),
    ],
)
def test_what_is_wrong_is_said_by_row(text: str, reason: str) -> None:
    assert NumericDomain(0, 80, 8).parse(["1", text, "2"])[1] == {1: reason}


def test_users_begin_with_the_smallest_value_or_another_one() -> None:
    assert NumericDomain(0, 80, 8).initial == 1
    assert NumericDomain(0, 80, 8, initial=35).initial == 4


def test_labels_name_the_ends_of_buckets() -> None:
    domain = NumericDomain(0, 1, 4)
    assert domain.items == ("0:0.25", "0.25:0.5", "0.5:0.75", "0.75:1")
    assert domain.size == 5
    assert domain.width == 0.25
    assert [domain.edge(index) for index in (0, 2.5, 4)] == [0, 0.625, 1]
