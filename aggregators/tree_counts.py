"""Least squares over a tree of values: the counts of all levels made one.

On the way up the count of every node is combined with the sum of its children's, by inverse
variance; on the way down what a node knows better than its children is shared out among them. The
result is consistent, the best linear unbiased estimate for the given variances (Hay, Rastogi,
Miklau, Suciu, "Boosting the accuracy of differentially private histograms through consistency",
2010), and takes time in proportion to the cells. How accurate its ranges are is known in advance:
`dpstream.randomizers.code_variances`.

Where only the root and the left children of a binary tree are counted, leaves follow by the first
of the equations in section 5.3 of "On the Power of Multiple Anonymous Messages" (Ghazi, Golowich,
Kumar, Pagh, Velingker 2019): a leaf is the kept node that ends with it, without those
that lie in that node. There are as many nodes as leaves, so nothing is left to be averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels


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


def level_values(
    levels: Levels, cells: NDArray[np.float64], variances: Sequence[float] | None = None
) -> NDArray[np.float64]:
    """The counts of all values that fit the counts of all nodes best.

    Args:
        levels: the tree.
        cells: without the mean of the noise, shape (cells, ...): one tree for every further index.
        variances: of a cell of each level from the root down; above 0, infinite for a level that is
            not used, which the lowest one must not be. None: all are equal.

    Returns:
        float64, shape (size, ...).

    >>> tree = Levels(2, (2,))
    >>> level_values(tree, np.array([120.0, 60.0, 30.0])).tolist()
    [70.0, 40.0]
    """
    own = [1.0] * levels.messages if variances is None else variances
    nodes = np.split(cells, np.cumsum(levels.nodes[:-1]))
    values, variance = nodes[-1], own[-1]
    # On the way up, what a node has more than the sum of its children have so far.
    surplus = []
    for counts, branching, prior in zip(
        reversed(nodes[:-1]), reversed(levels.branching), list(own[:-1])[::-1], strict=True
    ):
        below = values.reshape(len(counts), branching, *counts.shape[1:]).sum(axis=1)
        of_sum = branching * variance
        share = 0.0 if math.isinf(prior) else of_sum / (of_sum + prior)
        surplus.append(share * (counts - below))
        values, variance = below + surplus[-1], of_sum * (1 - share)
    # On the way down, that is shared out; children that are equally accurate take equal shares.
    extra = np.zeros_like(nodes[0])
    for gained, branching in zip(reversed(surplus), levels.branching, strict=True):
        extra = np.repeat((extra + gained) / branching, branching, axis=0)
    return (nodes[-1] + extra)[: levels.size]
