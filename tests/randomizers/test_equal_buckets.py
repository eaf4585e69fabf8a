"""Test equal-width buckets: exact on every edge, with labels that distinguish edges."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest

from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.randomizers.client.values import DeviceValues
from dpstream.randomizers.equal_buckets import EqualBuckets

# Low, high, number of buckets, and edges as users write them.
RANGES = {
    "temperatures": ("35.2", "41.6", 64),
    "cents": ("0", "40.96", 4096),
    "tenths": ("0", "12.8", 128),
    "around zero": ("-0.3", "0.4", 7),
    "seconds since 1970": ("1700000000", "1714745600", 4096),
    "millionths": ("100.0001", "100.0009", 8),
}


def _written(low: str, high: str, buckets: int) -> list[float]:
    width = (Decimal(high) - Decimal(low)) / buckets
    return [float(Decimal(low) + width * index) for index in range(buckets + 1)]


@pytest.mark.parametrize(("low", "high", "buckets"), RANGES.values(), ids=RANGES)
def test_number_on_an_edge_is_in_the_bucket_that_starts_there(
    low: str, high: str, buckets: int
) -> None:
    edges = _written(low, high, buckets)
    equal = EqualBuckets(float(low), float(high), buckets)
    expected = list(range(buckets))
    assert equal.find_all(np.array(edges[:-1])).tolist() == expected
    assert [equal.find(edge) for edge in edges[:-1]] == expected
    below = [math.nextafter(edge, -math.inf) for edge in edges[1:]]
    assert equal.find_all(np.array(below)).tolist() == expected
    assert [equal.edge(index) for index in range(buckets + 1)] == edges


@pytest.mark.parametrize(("low", "high", "buckets"), RANGES.values(), ids=RANGES)
def test_devices_and_files_and_range_queries_agree_on_edges_of_buckets(
    low: str, high: str, buckets: int
) -> None:
    edges = _written(low, high, buckets)[:-1]
    domain = NumericDomain(float(low), float(high), buckets)
    values = {"kind": "numbers", "size": buckets + 1, "slots": None, "buckets": buckets}
    ends = {"low": float(low), "high": float(high), "optional": False}
    device = DeviceValues.from_statement({**values, **ends})
    texts = [repr(edge) for edge in edges]
    assert domain.parse(texts)[0].tolist() == [device.number(edge) for edge in edges]
    assert [domain.range(f"{text}:").starts for text in texts] == [(at,) for at in range(buckets)]


def test_buckets_too_narrow_for_floats_are_rejected() -> None:
    with pytest.raises(
        ValueError, match=r"1,024 buckets from .* narrower than .* Use fewer buckets"
    ):
        EqualBuckets(1e15, 1e15 + 100, 1024)
    with pytest.raises(ValueError, match="expected a number above low"):
        EqualBuckets(1.0, 1.0, 4)
