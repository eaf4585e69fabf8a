"""Measures: what can be declared, labels and answers of numbers."""

from __future__ import annotations

from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.randomizers.equal_buckets import EqualBuckets, decimal
from dpstream.randomizers.measures import MEAN_UNIT, MeanRange, Measure, scaled

SUM: dict[str, Any] = {"type": "sum", "number": "minutes"}
VALID: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"type": "active"}, "boolean", ()),
    ({"type": "active", "within": 4, "event": ["search", "buy"]}, "boolean", ()),
    ({"type": "count", "at_least": 5}, "boolean", ()),
    ({"type": "days", "buckets": [0, 1, 2, 5]}, "labels", ("0", "1", "2 to 4", "5 and more")),
    ({"type": "count", "buckets": [1, 5]}, "labels", ("0 to 4", "5 and more")),
    ({**SUM, "mean": {"low": 0, "high": 600}}, "mean", ()),
    ({**SUM, "buckets": {"low": -1, "high": 1.5, "buckets": 8}, "scale": 10}, "numbers", ()),
    (
        {**SUM, "type": "max", "buckets": [0, 0.5, 20]},
        "labels",
        ("below 0.5", "0.5 to below 20", "20 and more"),
    ),
    ({"type": "last", "number": "minutes", "at_least": 2.5}, "boolean", ()),
    ({"type": "most", "label": "tab", "values": ["a", "b"]}, "labels", ("a", "b", "other")),
    ({"type": "lifecycle", "within": 3}, "labels", ("new", "retained", "resurrected", "dormant")),
    ({"type": "steps", "steps": ["see", "buy"]}, "labels", ("see", "buy")),
]
REJECTED: list[tuple[dict[str, Any], str]] = [
    ({}, "'type' is missing"),
    ({"type": "mean"}, "'type' is 'mean'; expected one of active"),
    ({"type": "active", "with": 2}, "unknown key 'with'"),
    ({"type": "active", "within": 0}, "'within' is 0; expected an integer from 1"),
    ({"type": "active", "within": 1.5}, "'within' is 1.5"),
    ({"type": "active", "event": ["a", "a"]}, "'event' has 'a' twice"),
    ({"type": "active", "event": [1]}, "'event' is [1]; expected a list of names"),
    ({"type": "active", "at_least": 1}, "'at_least' requires a number"),
    ({"type": "active", "number": "n"}, "'active' does not support 'number'. Remove it"),
    ({"type": "count"}, "got no answer for type 'count'; expected exactly one of"),
    ({"type": "count", "at_least": 1, "buckets": [0, 1]}, "got at_least and buckets"),
    ({"type": "count", "at_least": True}, "'at_least' is True; expected a number"),
    ({"type": "count", "buckets": [0, 0.5]}, "edge 0.5; expected integers from 0"),
    ({"type": "count", "buckets": [0]}, "'buckets' has 1 edges; expected 2 to 64"),
    ({"type": "count", "buckets": [0, 3, 2]}, "'buckets' is not sorted"),
    ({"type": "count", "buckets": 7}, "'buckets' is 7; expected a list"),
    ({"type": "count", "buckets": {"low": 0, "high": 4, "buckets": 3}}, "a power of two"),
    ({"type": "count", "buckets": {"low": 0, "high": 4}}, "'buckets' is None"),
    ({"type": "count", "buckets": {"low": 0, "high": 4, "buckets": 8}}, "narrower than 1/"),
    ({"type": "count", "mean": {"low": 3, "high": 3}}, "'mean' has high 3"),
    ({"type": "count", "mean": {"low": 0, "high": 0.5}}, "range of 0.5, but numbers are multiples"),
    (
        {**SUM, "mean": {"low": 0, "high": 1e-4}},
        "multiples of 0.001. Use a wider range, or a larger",
    ),
    ({"type": "count", "mean": {"low": 3}}, "'mean: high' is None"),
    ({"type": "count", "mean": [0, 1]}, "'mean' is [0, 1]; expected the keys low, high"),
    ({**SUM, "at_least": 1e20}, "'at_least' is 100000000000000000000"),
    ({**SUM, "at_least": float("nan")}, "'at_least' is nan"),
    ({**SUM, "buckets": [0, 0.1001, 0.1002]}, "narrower than 1/1000"),
    ({"type": "sum", "at_least": 1}, "type 'sum' requires exactly one of: 'number: COLUMN'"),
    ({**SUM, "number": "", "at_least": 1}, "'number' is empty"),
    ({"type": "last", "number": "n", "label": "l"}, "type 'last' requires exactly one of"),
    (
        {"type": "last", "number": "n", "buckets": {"low": 0, "high": 8, "buckets": 4}},
        "List the edges",
    ),
    ({"type": "most", "label": "tab"}, "type 'most' requires 'values'"),
    ({"type": "most", "label": "tab", "values": ["other"]}, "expected a name other than other"),
    ({"type": "most", "label": "tab", "values": ["a=b"]}, "without ',' and '='"),
    ({"type": "most", "label": "tab", "values": ["a "]}, "text without spaces around it"),
    ({"type": "most", "label": "tab", "values": list(map(str, range(64)))}, "at most 63"),
    ({"type": "active", "values": ["a"]}, "'active' does not support 'values'"),
    ({"type": "steps"}, "type 'steps' requires 'steps'"),
    ({"type": "steps", "steps": ["a"]}, "'steps' has only 'a'; expected at least 2 names"),
    ({"type": "steps", "steps": ["a", "b", "a"]}, "'steps' has 'a' twice"),
    ({"type": "steps", "steps": ["a", "b"], "event": "a"}, "does not support 'event'"),
]


@pytest.mark.parametrize(("document", "answer", "labels"), VALID)
def test_measure_has_an_answer_and_labels(
    document: dict[str, Any], answer: str, labels: tuple[str, ...]
) -> None:
    measure = Measure.from_json(document)
    assert (measure.answer, measure.labels) == (answer, labels)
    assert measure.to_json() == document
    assert Measure.from_json(measure.to_json()) == measure


@pytest.mark.parametrize(("document", "message"), REJECTED)
def test_measure_is_rejected_with_a_sentence(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Remove|Use|List|requires|known") as error:
        Measure.from_json(document)
    assert message in str(error.value)


def test_one_event_needs_no_list_and_integers_equal_floats() -> None:
    document = {"type": "sum", "number": "n", "event": "a", "buckets": [0.0, 2.0]}
    measure = Measure.from_json(document)
    assert measure == Measure("sum", event=("a",), number="n", buckets=(0, 2))
    assert repr(measure.to_json()["buckets"]) == "[0, 2]"


@given(st.floats(-50, 50), st.integers(-(10**5), 10**5))
def test_mean_is_the_exact_position_rounded_down(low: float, value: int) -> None:
    measure = Measure("sum", number="n", mean=MeanRange(low, low + 12.5))
    share = (Fraction(value, 1000) - decimal(low)) / (decimal(low + 12.5) - decimal(low))
    assert measure.answer_of(value) == floor(min(max(share, Fraction(0)), Fraction(1)) * MEAN_UNIT)
    assert measure.answer_of(None) == 0


@given(st.integers(-2000, 8000))
def test_buckets_are_those_of_their_edges(value: int) -> None:
    equal = EqualBuckets(0.1, 6.5, 64)
    number = min(max(value / 1000, 0.1), 6.4999)
    assert Measure("sum", number="n", buckets=equal).answer_of(value) == equal.find(number) + 1
    edges = Measure("max", number="n", buckets=(0, 0.5, 2))
    expected = 1 + (value >= 500) + (value >= 2000)
    assert edges.answer_of(value) == expected
    assert edges.answer_of(None) == 0
    assert Measure("max", number="n", at_least=0.5).answer_of(value) == (value >= 500)


def test_numbers_are_scaled_half_to_even_and_clamped() -> None:
    assert [scaled(number, 1000) for number in (0.0005, 0.0015, -1.2345, 7)] == [0, 2, -1234, 7000]
    assert [scaled(number, 1) for number in (1e300, -1e300, 0.5, 1.5)] == [2**53, -(2**53), 0, 2]
    with pytest.raises(ValueError, match="finite"):
        scaled(float("nan"), 1000)
