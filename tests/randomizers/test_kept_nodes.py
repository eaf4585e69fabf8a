"""Kept nodes: the root and the left children of the paper's tree, for any number of leaves."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.randomizers.cell_codes.kept_nodes import NONE, KeptNodes
from tests.support.code_matrices import code_matrix


@pytest.mark.parametrize("depth", range(8))
def test_the_nodes_are_the_root_and_the_left_children(depth: int) -> None:
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
def test_an_item_raises_at_most_so_many_different_cells(size: int) -> None:
    kept = KeptNodes(size)
    encoded = kept.encode(np.arange(1, size + 1))
    assert encoded.shape == (size, kept.messages)
    sent = (encoded != NONE).sum(axis=1)
    # Ancestors first, then nothing: the first item is the one with the most.
    assert sent[0] == kept.messages == 1 + int(np.log2(size))
    assert (np.diff((encoded == NONE).astype(int), axis=1) >= 0).all()
    matrix = code_matrix(kept)
    assert set(matrix.flat) <= {0.0, 1.0}
    assert (matrix.T @ matrix).min() == kept.shared


@pytest.mark.parametrize("size", [1, 5, 64])
def test_nodes_and_leaves_determine_each_other(size: int) -> None:
    inverse = np.linalg.inv(code_matrix(KeptNodes(size)))
    assert np.allclose(inverse, np.round(inverse))


@pytest.mark.parametrize(
    "body",
    [{"kind": "levels", "size": 4}, {"kind": "kept_nodes"}, {"kind": "kept_nodes", "size": 0}],
)
def test_other_json_is_refused(body: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        KeptNodes.from_json(body)


@pytest.mark.parametrize("item", [0, 5])
def test_items_outside_are_refused(item: int) -> None:
    with pytest.raises(ValueError, match=f"item {item}, must be from 1 to 4"):
        KeptNodes(4).encode(np.array([item]))
