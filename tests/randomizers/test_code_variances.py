"""Variances of ranges agree with dense least squares, for every range."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.code_variances import level_range_variances, range_variances
from tests.support.code_matrices import code_matrix


def dense_variances(
    matrix: NDArray[np.float64], variances: NDArray[np.float64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Starts and ends of all ranges within the size, and their variances."""
    covariance = np.linalg.inv(matrix.T @ (matrix / variances[:, None]))
    starts, ends = np.triu_indices(size + 1)
    values = np.arange(matrix.shape[1])
    ranges = (values >= starts[:, None]) & (values < ends[:, None])
    return starts, ends, np.einsum("ri,ij,rj->r", ranges, covariance, ranges)


@pytest.mark.parametrize(
    ("size", "branching"),
    [(64, (4, 4, 4)), (64, (2,) * 6), (48, (3, 4, 2, 2)), (37, (5, 8)), (7, (7,))],
)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_variances_of_ranges_over_levels_are_those_of_dense_algebra(
    size: int, branching: tuple[int, ...], seed: int | None
) -> None:
    levels = Levels(size, branching)
    own = np.ones(levels.messages)
    if seed is not None:
        own = np.random.default_rng(seed).uniform(0.1, 10, levels.messages)
        own[levels.messages - 2] = math.inf
    matrix = code_matrix(Levels(levels.leaves, branching))
    starts, ends, expected = dense_variances(matrix, np.repeat(own, levels.nodes), size)
    found = level_range_variances(levels, own.tolist(), starts, ends)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    if seed is None:
        assert (range_variances(levels, starts, ends) == found).all()


@pytest.mark.parametrize("size", [1, 2, 7, 32, 45, 64])
def test_variances_of_ranges_over_kept_nodes_are_those_of_dense_algebra(size: int) -> None:
    kept = KeptNodes(size)
    starts, ends, expected = dense_variances(code_matrix(kept), np.ones(size), size)
    found = range_variances(kept, starts, ends)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert found.max() <= max(1, 2 * math.log2(size))


def test_prefixes_share_the_nodes_of_all_bits_above_the_highest_that_differs() -> None:
    """Of domains so large that no algebra is dense."""
    kept = KeptNodes(1 << 40)
    for highest, lower in combinations(reversed(range(40)), 2):
        # Alike but for one bit, and each with a node below it.
        start, end = 1 << lower, 1 << highest | 1 << lower
        assert range_variances(kept, start, end) == 3
