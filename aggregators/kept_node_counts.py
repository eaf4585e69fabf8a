"""From the counts of the root and the left children of a binary tree to those of its leaves.

The first of the equations in section 5.3 of "On the Power of Multiple Anonymous Messages" (Ghazi,
Golowich, Kumar, Pagh, Velingker 2019): a leaf is the kept node that ends with it, without those
that lie in that node. There are as many nodes as leaves, so nothing is left to be averaged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes


def kept_node_values(kept: KeptNodes, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """The counts of all values.

    Args:
        kept: the tree.
        cells: without the mean of the noise, shape (size, ...): one tree for every further index.

    Returns:
        float64, shape (size, ...).

    >>> kept_node_values(KeptNodes(4), np.array([1.0, 3.0, 3.0, 10.0])).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return np.diff(_prefixes(kept, cells), axis=0)


def _prefixes(kept: KeptNodes, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many values lie before each end, shape (size + 1, ...)."""
    prefixes = np.zeros((kept.size + 1, *cells.shape[1:]))
    node = np.arange(kept.size + 1)
    while node.any():
        inside = node > 0
        prefixes[inside] += cells[node[inside] - 1]
        node &= node - 1
    return prefixes
