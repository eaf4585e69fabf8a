"""Test that values from apps are mapped to the job's domain and never appear in errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.randomizers.client import ValueRejectedError
from dpstream.randomizers.client.values import DeviceValues

YES = DeviceValues("value", 2, None)
LABELS = DeviceValues("items", 4, None, ("walk", "bus", "car"))
SETS = DeviceValues("items", 6, 2, ("a", "b", "c", "d", "e"))
UNTOLD = DeviceValues("found", 1 << 40, 3)
NUMBERS = DeviceValues("numbers", 5, None, (), 0.0, 8.0, 4)
OPTIONAL = DeviceValues("numbers", 5, None, (), 0.0, 8.0, 4, optional=True)


@given(
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e4),
    st.integers(1, 70_000),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1),
)
def test_devices_and_jobs_assign_numbers_to_the_same_buckets(
    low: float, width: float, n: int, shares: list[float]
) -> None:
    high = low + width
    domain = NumericDomain(low, high, n)
    values = DeviceValues("numbers", n + 1, None, (), low, high, n)
    given_numbers = [min(max(low + share * width, low), high) for share in shares]
    inside = [number for number in given_numbers if number < high]
    parsed, problems = domain.parse([repr(number) for number in inside])
    assert not problems
    assert [values.number(number) for number in inside] == parsed.tolist()


def test_labels_and_numbers_are_converted() -> None:
    assert [YES.number(value) for value in (True, False, 1, 0)] == [1, 0, 1, 0]
    assert [LABELS.number(value) for value in ("walk", "car", 2, None, 0)] == [1, 3, 2, 0, 0]
    assert SETS.number(["e", 1]) == [1, 5]
    assert SETS.number("b") == [2]
    assert SETS.number(None) == SETS.number([]) == []
    assert UNTOLD.number([1 << 39]) == [1 << 39]
    assert [OPTIONAL.number(value) for value in (None, 0, 7.99, 2)] == [0, 1, 4, 2]


@given(st.floats() | st.integers())
@example(float("nan"))
@example(float("inf"))
@example(10**400)
@example(8.0)
def test_every_number_is_accepted(number: float) -> None:
    for values in (NUMBERS, OPTIONAL):
        bucket = values.number(number)
        if number != number:
            assert bucket == (0 if values.optional else 1)
        else:
            assert bucket == values.number(min(max(number, 0.0), 7.999))


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "e", 1, 2, 3, 4, 5, None])))
def test_every_set_of_items_is_accepted(items: list[Any]) -> None:
    numbers = {1 + "abcde".index(each) if isinstance(each, str) else each for each in items}
    expected = sorted(number for number in numbers if number)[:2]
    assert SETS.number(items) == SETS.number(set(items)) == SETS.number(tuple(items)) == expected


@pytest.mark.parametrize(
    ("values", "value"),
    [
        (YES, 2),
        (YES, "yes"),
        (YES, None),
        (YES, -1),
        (YES, 1.0),
        (LABELS, "bicycle"),
        (LABELS, 4),
        (LABELS, True),
        (LABELS, ["walk"]),
        (SETS, [6]),
        (SETS, ["a", "bicycle"]),
        (SETS, b"ab"),
        (SETS, object()),
        (NUMBERS, None),
        (NUMBERS, True),
        (NUMBERS, "3"),
        (OPTIONAL, [1.0]),
    ],
)
def test_rejection_message_does_not_contain_the_value(values: DeviceValues, value: object) -> None:
    with pytest.raises(ValueRejectedError) as rejection:
        values.number(value)  # type: ignore[arg-type]
    assert "bicycle" not in str(rejection.value)
    assert "3" not in str(rejection.value) or values is not NUMBERS
