"""Test estimates from rows of buckets: typically unbiased, with the stated error."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.row_estimates import RowEstimates
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.count_min import Estimator
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.row_errors import clipped_errors, error_samples, zipf_counts

SIZE = 10_000
USERS = 100_000


def window(
    code: HashedRows, counts: NDArray[np.int64], noise: float, key: int
) -> NDArray[np.float64]:
    cells = code.encode(np.arange(1, len(counts) + 1))
    real = np.bincount(cells.ravel(), np.repeat(counts, code.messages), code.cells)
    dummies = seeded_generator(1, key).poisson(noise, code.cells)
    return np.asarray(real + dummies - noise, np.float64)


def zipf_window(key: int, users: int = USERS) -> NDArray[np.int64]:
    shares = zipf_counts(SIZE, 1.0)
    return seeded_generator(2, key).multinomial(users, shares / shares.sum())


@pytest.mark.parametrize("estimator", ["min", "mean", "median"])
def test_predicted_error_and_interval_hold_for_rare_items(estimator: Estimator) -> None:
    errors, covered, predicted, planned = [], [], [], []
    for key in range(8):
        code, counts = HashedRows(SIZE, 5, 8192, f"errors {key}"), zipf_window(key)
        rows = RowEstimates.from_cells(
            code, window(code, counts, 180.6, key), 180.6, USERS, estimator
        )
        rare = 100 + seeded_generator(3, key).permutation(SIZE - 100)[:400]
        off = np.abs(rows.values(rare + 1) - counts[rare])
        errors.append(off.mean())
        covered.append((off <= rows.half_width).mean())
        sample = error_samples(zipf_counts(SIZE, USERS), 5, 8192, 180.6)[estimator]
        if estimator == "min":  # as in the paper: at least 0
            predicted.append(clipped_errors(rows.errors, counts[rare]).mean())
            planned.append(clipped_errors(sample, counts[rare]).mean())
        else:
            predicted.append(rows.predicted_error)
            planned.append(np.abs(sample).mean())
    assert np.mean(predicted) == pytest.approx(np.mean(errors), rel=0.1)
    assert np.mean(planned) == pytest.approx(np.mean(errors), rel=0.1)
    # Truncation at 0 reduces the error.
    assert np.mean(covered) == pytest.approx(0.98 if estimator == "min" else 0.95, abs=0.02)


@pytest.mark.verify
def test_mean_estimator_is_unbiased_for_frequent_and_absent_items() -> None:
    counts = zipf_counts(200, 5_000).astype(np.int64)
    counts[17] = 0
    found = []
    for key in range(1_000):
        code = HashedRows(200, 2, 16, f"unbiased {key}")
        rows = RowEstimates.from_cells(code, window(code, counts, 20.0, key), 20.0, 5_000, "mean")
        found.append(rows.values(np.array([1, 2, 18])) - counts[[0, 1, 17]])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(mean) < 6.5 * error).all()
    # If the mean contribution of other items to a cell were not subtracted, the mean would show it.
    assert (np.abs(mean + counts.sum() / 16 / 4) > 6.5 * error).all()


def test_minimum_estimator_follows_algorithm_2_of_the_paper() -> None:
    """Algorithm 2: max(min_t C[t, h_t(x)] - gamma n, 0)."""
    code, counts = HashedRows(SIZE, 5, 8192, "published"), zipf_window(1)
    received = window(code, counts, 180.6, 1) + 180.6
    rows = RowEstimates.from_cells(code, received - 180.6, 180.6, USERS, "min")
    items = np.arange(1, 200)
    smallest = received[code.encode(items)].min(axis=1)
    assert rows.values(items) == pytest.approx(np.maximum(smallest - 180.6, 0))
