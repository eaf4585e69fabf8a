"""Values from kept nodes: what the nodes were made of."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.aggregators.tree_counts import kept_node_values
from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from tests.support.code_matrices import code_matrix


@pytest.mark.parametrize("size", [1, 2, 3, 8, 45, 128])
def test_nodes_are_taken_apart(size: int) -> None:
    kept = KeptNodes(size)
    values = np.random.default_rng(size).integers(0, 1000, (size, 2)).astype(float)
    assert (kept_node_values(kept, code_matrix(kept) @ values) == values).all()
