"""Test ranges and quantiles of numbers when the number of users with a value is unknown."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.tree_counts import level_values
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.code_variances import equal_variances
from dpstream.randomizers.randomness import seeded_generator
from tests.support.code_matrices import code_matrix

NOISE = 49.0
VALUES = np.array([10.0, 50.0, -20.0, 60.0, 0.0, 100.0])
TREES = [Levels(6, (3, 2)), Levels(6, (6,)), Levels(6, (2, 4))]


@pytest.mark.parametrize("levels", TREES, ids=str)
@pytest.mark.parametrize("rooted", [True, False])
def test_variance_of_a_range_matches_dense_least_squares(levels: Levels, rooted: bool) -> None:
    whole = Levels(levels.leaves, levels.branching)
    cells = code_matrix(whole)[0 if rooted else 1 :]
    covariance = NOISE * np.linalg.inv(cells.T @ cells)
    found = LevelEstimates.of_levels(levels, VALUES, NOISE, rooted=rooted)
    for start, end in combinations(range(7), 2):
        chosen = np.zeros(levels.leaves)
        chosen[start:end] = 1
        variance = chosen @ covariance @ chosen
        estimate = found.range(start, end)
        assert estimate.value == VALUES[start:end].sum()
        assert estimate.standard_error == pytest.approx(math.sqrt(variance))
    assert found.standard_error == pytest.approx(found.range(2, 3).standard_error)


def test_absent_users_widen_the_intervals_of_ranges() -> None:
    estimates = LevelEstimates.of_levels(
        TREES[0], VALUES, NOISE, absence_error=30.0, population=200, reports=150
    )
    alone = LevelEstimates.of_levels(TREES[0], VALUES, NOISE)
    sampled = (
        estimates.range(1, 2).standard_error or 0,
        alone.range(1, 2).standard_error or 0,
    )
    # A quarter of the users has the second value.
    assert sampled[0] ** 2 - sampled[1] ** 2 == pytest.approx(30.0**2 * 0.25 * 0.75)
    assert estimates.range(0, 6).standard_error == alone.range(0, 6).standard_error


@pytest.mark.parametrize("rooted", [True, False])
def test_quantile_intervals_contain_the_true_quantiles(rooted: bool) -> None:
    """The error of the total is included; ends are bucket edges, so coverage is at least 95 %."""
    levels, rng = Levels(64, (8, 8)), seeded_generator(3)
    ground_truth = np.bincount(rng.binomial(63, 0.3, 2_000), minlength=64)
    cells = code_matrix(levels) @ ground_truth
    variances = equal_variances(levels, 400.0, rooted=rooted)
    shares, held, widths, runs = (0.1, 0.5, 0.9), 0, [], 400
    below = np.cumsum(ground_truth) / ground_truth.sum()
    for _ in range(runs):
        noisy = cells + rng.normal(0, 20.0, len(cells))
        values = level_values(levels, noisy, variances)
        found = LevelEstimates.of_levels(levels, values, 400.0, rooted=rooted)
        for share in shares:
            quantile, bucket = found.quantile(share), int(np.searchsorted(below, share))
            held += quantile.ci95_low <= bucket < quantile.ci95_high
            widths.append(quantile.ci95_high - quantile.ci95_low)
    assert held / (runs * len(shares)) > 0.95
    assert np.mean(widths) < 10
