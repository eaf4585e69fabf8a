"""Estimates from rows of buckets: right on the usual, and as far off as they say."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.row_estimates import ESTIMATORS, RowEstimates
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.count_min import Estimator
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.row_errors import clipped_errors, error_samples, zipf_counts

SIZE = 10_000
USERS = 100_000


def window(
    code: HashedRows, counts: NDArray[np.int64], noise: float, key: int
) -> NDArray[np.float64]:
    """Cells of a window, without the mean of the noise."""
    cells = code.encode(np.arange(1, len(counts) + 1))
    real = np.bincount(cells.ravel(), np.repeat(counts, code.messages), code.cells)
    dummies = seeded_generator(1, key).poisson(noise, code.cells)
    return np.asarray(real + dummies - noise, np.float64)


def zipf_window(key: int, users: int = USERS) -> NDArray[np.int64]:
    shares = zipf_counts(SIZE, 1.0)
    return seeded_generator(2, key).multinomial(users, shares / shares.sum())


@pytest.mark.parametrize("estimator", ["min", "mean", "median"])
def test_the_error_and_the_interval_are_those_of_items_that_few_hold(estimator: Estimator) -> None:
    """400 random ones of a window of Zipf's law, with other hashes each time."""
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
        if estimator == "min":  # as published: never below 0
            predicted.append(clipped_errors(rows.errors, counts[rare]).mean())
            planned.append(clipped_errors(sample, counts[rare]).mean())
        else:
            predicted.append(rows.predicted_error)
            planned.append(np.abs(sample).mean())
    assert np.mean(predicted) == pytest.approx(np.mean(errors), rel=0.1)
    assert np.mean(planned) == pytest.approx(np.mean(errors), rel=0.1)
    # What is cut off at 0 is no longer off by as much.
    assert np.mean(covered) == pytest.approx(0.98 if estimator == "min" else 0.95, abs=0.02)


def test_the_best_estimator_is_chosen_and_named() -> None:
    chosen = {}
    for name, users, noise in (("skewed", 1_000_000, 18.0), ("noisy", 1_000, 2_000.0)):
        code, counts = HashedRows(SIZE, 5, 8192, "best"), zipf_window(1, users)
        cells = window(code, counts, noise, 1)
        rows = RowEstimates.from_cells(code, cells, noise, users)
        each: dict[str | None, float] = {}
        for asked in ESTIMATORS:
            found = RowEstimates.from_cells(code, cells, noise, users, asked)
            each[asked] = found.predicted_error
        assert each[rows.estimator] == min(each.values())
        assert rows.flags == (f"estimator: {rows.estimator}",)
        chosen[name] = rows.estimator
    assert chosen == {"skewed": "min", "noisy": "mean"}


@pytest.mark.verify
def test_the_mean_is_unbiased_over_hashes_for_frequent_and_for_absent_items() -> None:
    counts = zipf_counts(200, 5_000).astype(np.int64)
    counts[17] = 0
    found = []
    for key in range(1_000):
        code = HashedRows(200, 2, 16, f"unbiased {key}")
        rows = RowEstimates.from_cells(code, window(code, counts, 20.0, key), 20.0, 5_000, "mean")
        found.append(rows.values(np.array([1, 2, 18])) - counts[[0, 1, 17]])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(mean) < 6.5 * error).all()
    # What the other items put into a cell on average would show if it were left in.
    assert (np.abs(mean + counts.sum() / 16 / 4) > 6.5 * error).all()


def test_the_minimum_is_the_published_one() -> None:
    """Algorithm 2: max(min_t C[t, h_t(x)] - gamma n, 0)."""
    code, counts = HashedRows(SIZE, 5, 8192, "published"), zipf_window(1)
    received = window(code, counts, 180.6, 1) + 180.6
    rows = RowEstimates.from_cells(code, received - 180.6, 180.6, USERS, "min")
    items = np.arange(1, 200)
    smallest = received[code.encode(items)].min(axis=1)
    assert rows.values(items) == pytest.approx(np.maximum(smallest - 180.6, 0))


def test_the_median_is_as_often_too_large_as_too_small() -> None:
    above = []
    for key in range(6):
        code, counts = HashedRows(SIZE, 5, 8192, f"offset {key}"), zipf_window(key)
        rows = RowEstimates.from_cells(
            code, window(code, counts, 180.6, key), 180.6, USERS, "median"
        )
        rare = np.arange(2_000, SIZE)
        off = rows.values(rare + 1) - counts[rare]
        # Counts are whole numbers, and so are the errors of most: those of 0 are neither.
        above.append((np.sign(off).mean() + 1) / 2)
    assert np.mean(above) == pytest.approx(0.5, abs=0.03)


def test_a_bucket_for_every_item_needs_no_estimator() -> None:
    code = HashedRows.histogram(4)
    rows = RowEstimates.from_cells(code, np.array([5.0, -1.0, 0.0, 2.0]), 9.0, 100, reports=50)
    assert rows.flags == ()
    estimate = rows.item(2)
    assert (estimate.value, estimate.standard_deviation) == (-1.0, 3.0)
    assert (estimate.low, estimate.high) == pytest.approx((-6.88, 4.88), abs=0.01)
    assert (estimate.reports, estimate.population) == (50, 100)
    everything = rows.all_items()
    assert everything.values.tolist() == [5.0, -1.0, 0.0, 2.0]
    assert (everything.reports, everything.population) == (50, 100)


def test_all_items_of_a_large_domain_are_estimated_piece_by_piece() -> None:
    code = HashedRows(600_000, 2, 1 << 12, "large")
    rows = RowEstimates.from_cells(code, np.arange(1.0, 1.0 + code.cells), 1.0, 10, "median")
    found = rows.all_items().values
    for item in (1, 262_144, 262_145, 600_000):
        assert found[item - 1] == rows.item(item).value
