"""Compare range and box queries, and their variances, with dense least squares over all cells."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.grid_counts import GridCounts
from dpstream.randomizers.cell_codes.grid import AxisCode, Grid
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.code_matrices import code_matrix

CODES: list[AxisCode | Grid] = [
    Levels(24, (4, 3, 2)),
    KeptNodes(20),
    Grid((Levels(8, (4, 2)), Levels(6, (3, 2)))),
    Grid((Levels(6, (2, 3)), KeptNodes(7))),
    Grid((Levels(4, (2, 2)), Levels(3, (3,)), KeptNodes(4))),
]
SMALL = GridCounts.from_cells(Levels(3, (2, 2)), np.arange(7), 0.0, 1.0, contributors=9)


@pytest.mark.parametrize("code", CODES)
def test_box_counts_match_dense_least_squares(code: AxisCode | Grid) -> None:
    rng = np.random.default_rng(1)
    cells = rng.poisson(200, code.cells)
    counts = GridCounts.from_cells(code, cells, 180.0, 170.0, contributors=500)
    matrix = code_matrix(code)
    dense = np.linalg.lstsq(matrix, cells - 180.0)[0]
    covariance = 170.0 * np.linalg.inv(matrix.T @ matrix)
    sizes = counts.values.shape
    np.testing.assert_allclose(counts.values.ravel(), dense, atol=1e-6)
    for _ in range(50):
        corners = [np.sort(rng.choice(size + 1, 2, replace=False)).tolist() for size in sizes]
        inside = np.zeros(sizes)
        inside[tuple(slice(*corner) for corner in corners)] = 1
        chosen = inside.ravel()
        starts, ends = zip(*corners, strict=True)
        found = counts.box(starts, ends)
        assert found.value == pytest.approx(chosen @ dense, abs=1e-6)
        deviation = math.sqrt(chosen @ covariance @ chosen)
        assert found.standard_error == pytest.approx(deviation)
        assert found.value is not None
        assert found.ci95_low == pytest.approx(found.value - NORMAL_95 * deviation, abs=1e-6)
        assert found.ci95_high == pytest.approx(found.value + NORMAL_95 * deviation, abs=1e-6)


@pytest.mark.parametrize("ends", [(-1, 2), (2, 2), (3, 2), (0, 4)])
def test_ranges_outside_the_domain_are_rejected(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"is empty or not in \[0, 3\)"):
        SMALL.range(*ends)


def test_boxes_of_wrong_dimension_and_cumulative_counts_of_points_are_rejected() -> None:
    with pytest.raises(ValueError, match="a box requires one start and one end for each"):
        SMALL.box([0, 0], [1, 1])
    plane = GridCounts.from_cells(CODES[2], np.zeros(130, np.int64), 0.0, 1.0, contributors=1)
    with pytest.raises(
        ValueError, match=("points with 2 coordinates have no order: query a box instead")
    ):
        plane.cumulative()
