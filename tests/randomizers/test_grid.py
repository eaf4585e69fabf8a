"""Grids: the cells of a point are all combinations of the cells of its coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.code_matrices import code_matrix

GRIDS = [
    Grid((Levels(6, (3, 2)),)),
    Grid((Levels(5, (2, 3)), KeptNodes(7))),
    Grid((KeptNodes(4), Levels(3, (3,)), Levels(4, (2, 2)))),
]


@pytest.mark.parametrize("grid", GRIDS)
def test_the_matrix_is_the_tensor_product_of_those_of_the_axes(grid: Grid) -> None:
    product: NDArray[np.float64] = np.ones((1, 1))
    for axis in grid.axes:
        product = np.kron(product, code_matrix(axis)).astype(np.float64)
    assert (code_matrix(grid) == product).all()
    assert product.shape == (grid.cells, grid.size)
    assert product.sum(axis=0).max() == grid.messages
    assert (product.T @ product).min() == grid.shared


def test_points_are_items_in_order() -> None:
    grid = GRIDS[2]
    points = np.argwhere(np.ones(grid.sizes))
    assert grid.items(points).tolist() == list(range(1, grid.size + 1))


@pytest.mark.parametrize("point", [(4, 0, 0), (0, 0, -1)])
def test_points_outside_are_refused(point: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="invalid entry"):
        GRIDS[2].items(np.array([point]))


def test_items_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="item 36, must be from 1 to 35"):
        GRIDS[1].encode(np.array([36]))


def test_of_no_items_there_are_no_cells() -> None:
    assert GRIDS[1].encode(np.array([], np.int64)).shape == (0, GRIDS[1].messages)


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "levels", "size": 2, "branching": [2]},
        {"kind": "grid", "axes": []},
        {"kind": "grid", "axes": [{"kind": "grid", "axes": []}]},
    ],
)
def test_other_json_is_refused(body: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        Grid.from_json(body)
