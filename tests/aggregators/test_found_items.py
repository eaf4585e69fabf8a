"""The items most held, as they are published and read back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.found_items import FoundItems

FOUND = FoundItems(
    items=np.array([1 << 40, 3]),
    values=np.array([91.25, 17.0]),
    standard_deviation=2.5,
    half_width=4.9,
    found_above=21.9,
    reports=80,
    population=100,
    flags=("estimator: min",),
)


def test_the_headline_is_the_item_most_held() -> None:
    headline = FOUND.headline
    assert headline == FOUND.estimate(0)
    assert headline is not None
    assert (headline.value, headline.standard_deviation) == (91.25, 2.5)
    assert (headline.low, headline.high) == pytest.approx((86.35, 96.15))
    assert (headline.reports, headline.population, headline.flags) == (80, 100, FOUND.flags)
    assert FOUND.intervals.tolist() == pytest.approx(
        np.array([[91.25, 17.0], [86.35, 12.1], [96.15, 21.9]])
    )


def test_nothing_found_has_no_headline() -> None:
    nothing = FoundItems(np.zeros(0, np.int64), np.zeros(0), 1.0, 2.0, 3.0, 4, 5)
    assert nothing.headline is None
    again = FoundItems.from_json(nothing.to_json())
    assert (again.items.shape, again.intervals.shape) == ((0,), (3, 0))


def test_json_is_read_back_to_a_tenth_of_a_user() -> None:
    body = json.loads(json.dumps(FOUND.to_json(), allow_nan=False))
    again = FoundItems.from_json(body)
    assert again.items.tolist() == FOUND.items.tolist()
    assert again.values.tolist() == [91.2, 17.0]
    assert again.to_json() == body


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"found": [1]}, ValueError),
        ({"found": [[1, 2]], "values": [[1.0, 2.0]]}, ValueError),
        ({"found": ["x", "y"]}, ValueError),
        ({"reports": None}, TypeError),
        ({"flags": None}, TypeError),
    ],
)
def test_json_of_another_form_is_refused(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        FoundItems.from_json({**FOUND.to_json(), **changes})
    with pytest.raises(KeyError):
        FoundItems.from_json({})
