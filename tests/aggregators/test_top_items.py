"""Test the selection of the largest items and its effect on their intervals."""

from __future__ import annotations

import numpy as np

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.randomizers.randomness import seeded_generator

DEVIATION = 50.0


def estimates(values: np.ndarray, flags: tuple[str, ...] = ()) -> ItemEstimates:
    return ItemEstimates(values, DEVIATION, NORMAL_95 * DEVIATION, 1_000, 5_000, flags)


def test_top_items_are_sorted_by_their_estimates() -> None:
    every = estimates(np.array([10.0, 400.0, -30.0, 90.0]), flags=("gap",))
    found = every.top(2)
    assert found.items.tolist() == [2, 4]
    assert list(found.of_items()) == [(2, every.item(1)), (4, every.item(3))]


def test_simultaneous_intervals_hold_in_spite_of_selection_bias() -> None:
    """1,000 items have no users: the ten largest estimates are noise."""
    rng, runs, own, simultaneous = seeded_generator(1), 400, 0, 0
    for _ in range(runs):
        every = estimates(rng.normal(0, DEVIATION, 1_000))
        values, lows, _ = every.top(10).intervals
        own += int((lows <= 0).any())
        simultaneous += int((values - every.simultaneous_half_width <= 0).all())
    assert own < runs / 4
    # In 97.5 % of the runs, as only the lower ends matter; the bound is 9 deviations below.
    assert simultaneous >= runs * 0.975 - 9 * np.sqrt(runs * 0.975 * 0.025)
