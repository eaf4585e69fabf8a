"""Errors of rows that are predicted: normal ones, and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpstream.randomizers.row_errors import error_samples, normal_errors, zipf_counts


def test_normal_errors_are_normal_with_their_deviation_and_always_the_same() -> None:
    errors = normal_errors(3.0)
    assert stats.kstest(errors / 3, "norm").pvalue > 1e-3
    assert errors.mean() == pytest.approx(0.0, abs=0.1)
    assert errors.std() == pytest.approx(3.0, rel=0.02)
    np.testing.assert_array_equal(normal_errors(3.0), errors)
    np.testing.assert_allclose(normal_errors(6.0), 2 * errors)


def test_errors_of_rows_are_those_of_noise_and_of_what_else_is_in_a_cell() -> None:
    """The mean of rows has the variance of one, by their number."""
    counts, rows, buckets = zipf_counts(1000, 1e4), 4, 64
    alone = error_samples(np.zeros(1000), rows, buckets, 100.0)["mean"]
    assert alone.std() == pytest.approx((100.0 / rows) ** 0.5, rel=0.02)
    with_others = error_samples(counts, rows, buckets, 100.0)["mean"]
    others = np.square(counts).sum() * (1 - 1 / buckets) / buckets
    assert with_others.std() == pytest.approx(((100.0 + others) / rows) ** 0.5, rel=0.5)
