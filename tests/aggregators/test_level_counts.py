"""Compare least squares over a tree with dense weighted least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.tree_counts import level_values
from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.code_matrices import code_matrix

TREES = [(4, 4, 4), (2,) * 6, (3, 4, 2, 2), (5, 8), (7,)]


@pytest.mark.parametrize("branching", TREES)
@pytest.mark.parametrize("seed", [1, 2])
def test_estimates_are_the_best_linear_unbiased_estimates(
    branching: tuple[int, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    levels = Levels(math.prod(branching), branching)
    matrix = code_matrix(levels)
    cells = rng.normal(0, 100, (levels.cells, 3))
    variances = rng.uniform(0.1, 10, levels.messages)
    weights = np.repeat(1 / variances, levels.nodes)[:, None]
    expected = np.linalg.solve(matrix.T @ (weights * matrix), matrix.T @ (weights * cells))
    np.testing.assert_allclose(level_values(levels, cells, variances.tolist()), expected)
    alike = np.linalg.lstsq(matrix, cells)[0]
    np.testing.assert_allclose(level_values(levels, cells), alike, atol=1e-9)
