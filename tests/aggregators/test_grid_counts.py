"""Compare range and box queries, and their variances, with dense least squares over all cells."""

from __future__ import annotations

import math
from itertools import product

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


@pytest.mark.verify
def test_intervals_cover_poisson_noise_at_the_nominal_rate() -> None:
    code = Grid((Levels(8, (4, 2)), Levels(8, (4, 2))))
    rng = np.random.default_rng(4)
    held = rng.integers(0, 50, code.size)
    exact = (code_matrix(code) @ held).astype(np.int64)
    boxes = list(product([(0, 3), (2, 8), (5, 6)], repeat=2))
    ground_truths = [held.reshape(8, 8)[slice(*one), slice(*other)].sum() for one, other in boxes]
    runs, covered = 3_000, np.zeros(len(boxes))
    for _ in range(runs):
        cells = exact + rng.poisson(280.0, code.cells)
        counts = GridCounts.from_cells(code, cells, 280.0, 280.0, contributors=2_000)
        for index, ((one, other), ground_truth) in enumerate(
            zip(boxes, ground_truths, strict=True)
        ):
            found = counts.box((one[0], other[0]), (one[1], other[1]))
            assert found.ci95_low is not None
            assert found.ci95_high is not None
            covered[index] += found.ci95_low <= ground_truth <= found.ci95_high
    # With standard errors a tenth too small, coverage would be 92.2 %.
    assert (np.abs(covered / runs - 0.95) < 6.5 * math.sqrt(0.95 * 0.05 / runs)).all()
    assert 6.5 * math.sqrt(0.95 * 0.05 / runs) < 0.026


@pytest.mark.parametrize("ends", [(-1, 2), (2, 2), (3, 2), (0, 4)])
def test_ranges_outside_the_domain_are_rejected(ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"is empty or not in \[0, 3\)"):
        SMALL.range(*ends)


def test_wrong_box_dimensions_and_cumulative_counts_of_points_are_rejected() -> None:
    with pytest.raises(ValueError, match="a box requires one start and one end for each"):
        SMALL.box([0, 0], [1, 1])
    plane = GridCounts.from_cells(CODES[2], np.zeros(130, np.int64), 0.0, 1.0, contributors=1)
    with pytest.raises(
        ValueError, match=("points with 2 coordinates have no order: query a box instead")
    ):
        plane.cumulative()
