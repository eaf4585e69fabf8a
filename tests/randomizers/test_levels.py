"""Levels of a tree: an item raises its ancestors, one of each level, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.cell_codes.levels import Levels
from tests.support.code_matrices import code_matrix

TREES = [Levels(1024, (32, 32)), Levels(50, (4, 3, 5)), Levels(60, (4, 3, 5)), Levels(2, (2,))]


@pytest.mark.parametrize("levels", TREES)
def test_a_cell_is_raised_by_neighbouring_values_as_many_as_its_level_joins(levels: Levels) -> None:
    matrix = code_matrix(levels)
    assert matrix.shape == (levels.cells, levels.size)
    assert set(matrix.flat) == {0.0, 1.0}
    cell = 0
    for nodes, width in zip(levels.nodes, levels.widths, strict=True):
        for node in range(nodes):
            values = np.flatnonzero(matrix[cell])
            assert values.tolist() == [*range(node * width, min((node + 1) * width, levels.size))]
            cell += 1
    assert cell == levels.cells
    assert (matrix.sum(axis=0) == levels.messages).all()


@pytest.mark.parametrize("levels", TREES)
def test_items_have_only_the_shared_cells_in_common_at_the_least(levels: Levels) -> None:
    matrix = code_matrix(levels)
    assert (matrix.T @ matrix).min() == levels.shared == 1


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "kept_nodes", "size": 4, "branching": [2, 2]},
        {"kind": "levels", "size": 4},
        {"kind": "levels", "size": "4", "branching": [2, 2]},
        {"kind": "levels", "size": 4, "branching": [2, 2.5]},
    ],
)
def test_other_json_is_refused(body: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        Levels.from_json(body)


@pytest.mark.parametrize(
    ("size", "branching", "message"),
    [
        (0, (2,), "size is 0"),
        (4, (), r"branching is \(\)"),
        (4, (4, 1), r"branching is \(4, 1\)"),
        (5, (2, 2), "has 4 leaves, too few for 5"),
    ],
)
def test_trees_that_there_are_not_are_refused(
    size: int, branching: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Levels(size, branching)


@pytest.mark.parametrize("item", [-1, 0, 51])
def test_items_outside_are_refused(item: int) -> None:
    with pytest.raises(ValueError, match=f"item {item}, must be from 1 to 50"):
        TREES[1].encode(np.array([3, item, 50]))


def test_of_no_items_there_are_no_cells() -> None:
    assert TREES[1].encode(np.array([], np.int64)).shape == (0, 4)
