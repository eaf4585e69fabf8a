"""Test codes: the cells that an item raises, in rows of buckets, trees, grids and prefixes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.randomizers.cell_codes.grid import Grid
from dpstream.randomizers.cell_codes.hashed_rows import HashedRows
from dpstream.randomizers.cell_codes.kept_nodes import NONE, KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells, PrefixLevel
from tests.support.code_matrices import code_matrix

FALSE_ALARM = 1e-11
ROWS = HashedRows(10_000, 3, 40, "rows")
TREES = [Levels(1024, (32, 32)), Levels(50, (4, 3, 5)), Levels(60, (4, 3, 5)), Levels(2, (2,))]
GRIDS = [
    Grid((Levels(6, (3, 2)),)),
    Grid((Levels(5, (2, 3)), KeptNodes(7))),
    Grid((KeptNodes(4), Levels(3, (3,)), Levels(4, (2, 2)))),
]


def levels(*pairs: tuple[int, int]) -> tuple[PrefixLevel, ...]:
    return tuple(PrefixLevel(*pair) for pair in pairs)


def test_buckets_of_different_rows_are_independent() -> None:
    cells = ROWS.encode(np.arange(1, ROWS.size + 1))
    assert (cells // ROWS.buckets == np.arange(3)).all()
    buckets = cells % ROWS.buckets
    for one, other in ((0, 1), (0, 2), (1, 2)):
        joint = np.bincount(buckets[:, one] * 40 + buckets[:, other], minlength=1600)
        # Affine maps spread consecutive numbers more evenly than random hashing.
        assert stats.chi2.sf(((joint - 6.25) ** 2 / 6.25).sum(), 1599) > FALSE_ALARM
        same = np.bincount(buckets[:, one] * 40 + buckets[:, one], minlength=1600)
        assert stats.chi2.sf(((same - 6.25) ** 2 / 6.25).sum(), 1599) < FALSE_ALARM


@pytest.mark.parametrize("tree", TREES)
def test_each_tree_cell_covers_consecutive_values(tree: Levels) -> None:
    matrix = code_matrix(tree)
    assert matrix.shape == (tree.cells, tree.size)
    found = [tuple(np.flatnonzero(row).tolist()) for row in matrix]
    assert found == [
        tuple(range(node * width, min((node + 1) * width, tree.size)))
        for nodes, width in zip(tree.nodes, tree.widths, strict=True)
        for node in range(nodes)
    ]
    assert (matrix.sum(axis=0) == tree.messages).all()
    assert (matrix.T @ matrix).min() == tree.shared == 1


@pytest.mark.parametrize("depth", range(8))
def test_published_tree_consists_of_the_root_and_left_children(depth: int) -> None:
    size = 1 << depth
    left = {
        tuple(range(start, start + width))
        for width in (1 << height for height in range(depth))
        for start in range(0, size, 2 * width)
    }
    found = [tuple(np.flatnonzero(row).tolist()) for row in code_matrix(KeptNodes(size))]
    assert len(found) == size
    assert set(found) == left | {tuple(range(size))}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100, 128])
def test_item_is_counted_in_at_most_one_node_per_depth_of_the_published_tree(size: int) -> None:
    kept = KeptNodes(size)
    encoded = kept.encode(np.arange(1, size + 1))
    assert encoded.shape == (size, kept.messages)
    # Ancestors first, then padding: the first item has the most cells.
    assert (encoded != NONE).sum(axis=1)[0] == kept.messages == 1 + int(np.log2(size))
    assert (np.diff((encoded == NONE).astype(int), axis=1) >= 0).all()
    matrix = code_matrix(kept)
    assert (matrix.T @ matrix).min() == kept.shared


@pytest.mark.parametrize("grid", GRIDS)
def test_cells_of_a_grid_are_the_tensor_product_of_its_axes(grid: Grid) -> None:
    product: NDArray[np.float64] = np.ones((1, 1))
    for axis in grid.axes:
        product = np.kron(product, code_matrix(axis)).astype(np.float64)
    assert (code_matrix(grid) == product).all()
    assert product.sum(axis=0).max() == grid.messages
    assert (product.T @ product).min() == grid.shared
    assert grid.items(np.argwhere(np.ones(grid.sizes))).tolist() == [*range(1, grid.size + 1)]


def test_item_is_counted_in_one_cell_on_each_prefix_level() -> None:
    code = PrefixCells(levels((4, 16), (9, 30), (12, 50)), seed="a")
    items = np.arange(1, (1 << 12) + 1)
    cells = code.encode(items)
    assert (code.cells, code.messages, code.bits) == (96, 3, 12)
    assert (cells[:, 0] == (items - 1) >> 8).all()
    for index, (low, high) in enumerate([(0, 16), (16, 46), (46, 96)]):
        assert set(cells[:, index].tolist()) == set(range(low, high))
    alike = cells.reshape(1 << 9, 8, 3)
    assert (alike[:, :, :2] == alike[:, :1, :2]).all()


@pytest.mark.parametrize(
    ("code", "item", "message"),
    [
        *(
            (ROWS, item, f"item {item} is out of range; expected 1 to 10000")
            for item in (0, -1, 10_001)
        ),
        *(
            (TREES[1], item, f"item {item} is out of range; expected 1 to 50")
            for item in (-1, 0, 51)
        ),
        *((KeptNodes(4), item, f"item {item} is out of range; expected 1 to 4") for item in (0, 5)),
        (GRIDS[1], 36, "item 36 is out of range; expected 1 to 35"),
        *(
            (PrefixCells(levels((2, 4), (3, 5)), seed="a"), item, "items range from")
            for item in (-1, 9)
        ),
    ],
)
def test_items_outside_the_domain_are_rejected(code: Any, item: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        code.encode(np.array([1, item]))
    assert code.encode(np.array([], np.int64)).shape == (0, code.messages)


@pytest.mark.parametrize("point", [(4, 0, 0), (0, 0, -1)])
def test_points_outside_the_grid_are_rejected(point: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="invalid entry"):
        GRIDS[2].items(np.array([point]))


@pytest.mark.parametrize(
    ("size", "branching", "message"),
    [
        (0, (2,), "'size' is 0"),
        (4, (), r"'branching' is \(\)"),
        (4, (4, 1), r"'branching' is \(4, 1\)"),
        (5, (2, 2), "has 4 leaves; expected at least"),
    ],
)
def test_invalid_trees_are_rejected(size: int, branching: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Levels(size, branching)
