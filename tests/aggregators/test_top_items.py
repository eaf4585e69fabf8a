"""Test the selection of the largest items and its effect on their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.item_estimates import ItemEstimates, norm_sub
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


VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30).map(np.array)


@given(VALUES, st.floats(0, 1e6))
def test_norm_sub_counts_are_nonnegative_with_the_given_sum(
    values: np.ndarray, population: float
) -> None:
    fitted = norm_sub(values, population)
    assert (fitted >= 0).all()
    assert fitted.sum() == pytest.approx(population, abs=1e-6)


@given(VALUES, st.floats(1, 1e6))
def test_norm_sub_shifts_positive_counts_by_the_same_amount(
    values: np.ndarray, population: float
) -> None:
    """As all other counts are below the shift, this proves that the result is the nearest one."""
    fitted = norm_sub(values, population)
    kept = fitted > 0
    shift = (values - fitted)[kept]
    assert np.ptp(shift) <= 1e-6
    assert (values[~kept] <= shift.max() + 1e-6).all()
