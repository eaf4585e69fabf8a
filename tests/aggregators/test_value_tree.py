"""Least squares over a tree of values, against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.tree_smoothing import consistent_buckets
from dpstream.randomizers.randomness import seeded_generator

POPULATION = 1_000.0


def dense(levels: list[NDArray[np.float64]], variances: list[float]) -> NDArray[np.float64]:
    """The buckets that minimise the weighted squares and add up to the population."""
    buckets = len(levels[-1])
    rows, wanted = [], []
    for values, variance in zip(levels, variances, strict=True):
        nodes = np.kron(np.eye(len(values)), np.ones((1, buckets // len(values))))
        rows.append(nodes / np.sqrt(variance))
        wanted.append(values / np.sqrt(variance))
    matrix, target = np.vstack(rows), np.concatenate(wanted)
    # Lagrange: the last unknown is the multiplier of the sum.
    system = np.block(
        [[matrix.T @ matrix, np.ones((buckets, 1))], [np.ones((1, buckets)), np.zeros((1, 1))]]
    )
    solved = np.linalg.solve(system, np.append(matrix.T @ target, POPULATION))
    result: NDArray[np.float64] = solved[:-1]
    return result


@pytest.mark.parametrize("variances", [[2.0], [3.0, 1.0], [1.0, 4.0, 0.5], [9.0, 1.0, 2.0, 3.0]])
def test_consistent_buckets_solve_the_normal_equations(variances: list[float]) -> None:
    rng = seeded_generator(len(variances))
    levels = [rng.normal(100, 50, 2 << level) for level in range(len(variances))]
    found = consistent_buckets(levels, variances, POPULATION)
    assert found == pytest.approx(dense(levels, variances))
    assert found.sum() == pytest.approx(POPULATION)


def test_a_level_with_an_infinite_variance_takes_no_part() -> None:
    levels = [np.array([1e9, -1e9]), np.array([400.0, 300.0, 200.0, 100.0])]
    assert consistent_buckets(levels, [np.inf, 1.0], POPULATION) == pytest.approx(levels[1])


def test_without_users_all_buckets_are_zero() -> None:
    levels = [np.zeros(2), np.zeros(4)]
    assert consistent_buckets(levels, [0.0, 0.0], 0).tolist() == [0.0] * 4
