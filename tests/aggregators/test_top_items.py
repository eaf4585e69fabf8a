"""The largest items: which they are, and what selecting them does to their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from aggregators.estimate import NORMAL_95, ItemEstimates
from aggregators.top_items import top_items
from randomizers.randomness import seeded_generator

DEVIATION = 50.0


def estimates(values: np.ndarray, flags: tuple[str, ...] = ()) -> ItemEstimates:
    return ItemEstimates(values, DEVIATION, NORMAL_95 * DEVIATION, 1_000, 5_000, flags)


def test_they_come_by_size_with_their_own_estimates() -> None:
    every = estimates(np.array([10.0, 400.0, -30.0, 90.0]), flags=("gap",))
    found = top_items(every, 2)
    assert found.items == (1, 3)
    assert found.estimates == (every.item(1), every.item(3))


def test_no_more_than_there_are() -> None:
    assert top_items(estimates(np.array([1.0, 2.0])), 10).items == (1, 0)


def test_the_first_of_equal_ones_comes_first() -> None:
    assert top_items(estimates(np.array([5.0, 7.0, 7.0])), 2).items == (1, 2)


def test_of_a_single_item_the_simultaneous_interval_is_its_own() -> None:
    found = top_items(estimates(np.array([5.0])), 1)
    assert found.simultaneous_half_width == pytest.approx(NORMAL_95 * DEVIATION)


def test_selection_biases_and_simultaneous_intervals_hold_all_the_same() -> None:
    """1,000 items that nobody has: the ten largest estimates are noise."""
    rng, runs, own, simultaneous = seeded_generator(1), 400, 0, 0
    for _ in range(runs):
        found = top_items(estimates(rng.normal(0, DEVIATION, 1_000)), 10)
        lows = np.array([each.low for each in found.estimates], np.float64)
        values = np.array([each.value for each in found.estimates], np.float64)
        own += int((lows <= 0).any())
        simultaneous += int((values - found.simultaneous_half_width <= 0).all())
    assert own < runs / 4
    # 97.5 % of the runs, since only the lower ends matter; 9 standard deviations below it.
    assert simultaneous >= runs * 0.975 - 9 * np.sqrt(runs * 0.975 * 0.025)
