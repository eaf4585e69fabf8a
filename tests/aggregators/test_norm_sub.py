"""Test Norm-Sub: the nearest counts that are nonnegative and have the given sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.aggregators.item_estimates import norm_sub

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30).map(np.array)


@given(VALUES, st.floats(0, 1e6))
def test_counts_are_nonnegative_with_the_given_sum(values: np.ndarray, population: float) -> None:
    fitted = norm_sub(values, population)
    assert (fitted >= 0).all()
    assert fitted.sum() == pytest.approx(population, abs=1e-6)


@given(VALUES, st.floats(1, 1e6))
def test_positive_counts_are_shifted_by_the_same_amount(
    values: np.ndarray, population: float
) -> None:
    """As all other counts are below the shift, this proves that the result is the nearest one."""
    fitted = norm_sub(values, population)
    kept = fitted > 0
    shift = (values - fitted)[kept]
    assert np.ptp(shift) <= 1e-6
    assert (values[~kept] <= shift.max() + 1e-6).all()
