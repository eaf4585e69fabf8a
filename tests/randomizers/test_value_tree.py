"""The accuracy of a tree of values, against dense linear algebra and against other levels."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.accounting.level_weights import (
    WEIGHT_TOTAL,
    mean_range_energies,
    optimal_level_weights,
)
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_tree import range_variances


def covariance(variances: list[float]) -> NDArray[np.float64]:
    """Of the buckets, by least squares over all nodes, with a sum that is known."""
    levels = len(variances)
    buckets = 1 << levels
    precision = np.zeros((buckets, buckets))
    for level, variance in enumerate(variances, start=1):
        nodes = np.kron(np.eye(1 << level), np.ones((1, buckets >> level)))
        precision += nodes.T @ nodes / variance
    free = np.linalg.svd(np.ones((1, buckets)))[2][1:].T
    result: NDArray[np.float64] = free @ np.linalg.inv(free.T @ precision @ free) @ free.T
    return result


@pytest.mark.parametrize("variances", [[2.0], [3.0, 1.0], [1.0, 4.0, 0.5], [9.0, 1.0, 2.0, 3.0]])
def test_every_range_has_the_variance_of_least_squares(variances: list[float]) -> None:
    buckets = 1 << len(variances)
    exact = covariance(variances)
    for start, end in combinations(range(buckets + 1), 2):
        found = float(range_variances(np.array(variances), start, end))
        assert found == pytest.approx(exact[start:end, start:end].sum(), abs=1e-12)


def test_all_levels_but_the_last_may_say_nothing() -> None:
    found = range_variances(np.array([np.inf, np.inf, 1.0]), 0, 4)
    assert float(found) == pytest.approx(covariance([1e12, 1e12, 1.0])[:4, :4].sum())


def test_exact_levels_leave_no_variance() -> None:
    assert range_variances(np.zeros(3), 0, np.arange(9)).tolist() == [0.0] * 9


def test_many_trees_at_once() -> None:
    variances = np.array([[1.0, 2.0], [3.0, 4.0]])
    together = range_variances(variances, 1, 3)
    assert together.tolist() == [
        float(range_variances(variances[:, tree], 1, 3)) for tree in (0, 1)
    ]


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_energies_are_means_over_all_ranges(levels: int) -> None:
    """With one level of wavelets free and the others known, the variance is its energy."""
    buckets = 1 << levels
    variances = seeded_generator(levels).random(levels) + 0.5
    precisions = np.cumsum((np.exp2(np.arange(levels)[::-1]) / variances)[::-1])[::-1]
    mean = np.mean(
        [range_variances(variances, *ends) for ends in combinations(range(buckets + 1), 2)]
    )
    assert float((mean_range_energies(levels) / precisions).sum()) == pytest.approx(float(mean))


@pytest.mark.parametrize("levels", [2, 3, 6, 10, 12])
def test_no_shares_nearby_and_no_uniform_ones_are_better(levels: int) -> None:
    rng = seeded_generator(levels)
    unit = 1 + rng.random(levels)
    energies = mean_range_energies(levels)

    def mean_variance(shares: NDArray[np.float64]) -> float:
        told = np.exp2(np.arange(levels)[::-1]) * shares / shares.sum() / unit
        return float((energies / np.cumsum(told[::-1])[::-1]).sum())

    weights = np.array(optimal_level_weights(unit), np.float64)
    assert abs(weights.sum() - WEIGHT_TOTAL) <= levels
    assert weights[-1] > 0
    best = mean_variance(weights)
    assert best < 0.9 * mean_variance(np.ones(levels))
    for _ in range(200):
        assert mean_variance(weights * np.exp(rng.normal(0, 0.2, levels))) > 0.998 * best


@pytest.mark.parametrize("levels", [2, 3, 6, 10, 12])
def test_weights_do_not_hang_on_how_a_processor_rounds(levels: int) -> None:
    """A law is known by them: who calculates it elsewhere must find the same."""
    rng = seeded_generator(levels)
    unit = 1 + rng.random(levels)
    weights = optimal_level_weights(unit)
    for _ in range(8):
        assert optimal_level_weights(unit * (1 + rng.normal(0, 4e-16, levels))) == weights
