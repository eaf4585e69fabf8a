"""Least squares over a tree of values: make the counts of all levels consistent.

On the way up, the count of every node is combined with the sum of its children's counts, weighted
by inverse variance. On the way down, a node's excess over this sum is distributed among its
children. The result is consistent, and is the best linear unbiased estimate for the given
variances. It takes time proportional to the number of cells. `dpstream.randomizers.code_variances`
predicts its accuracy.

Some binary trees count only the root and the left children. There, the count of a leaf is that of
the counted node that ends with the leaf, minus those of the counted nodes within that node. There
are as many counted nodes as leaves, so nothing remains to be averaged.

References: Hay, Rastogi, Miklau, Suciu, "Boosting the accuracy of differentially private histograms
through consistency", 2010. Ghazi, Golowich, Kumar, Pagh, Velingker, "On the Power of Multiple
Anonymous Messages", 2019, section 5.3, the first of the equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.kept_nodes import KeptNodes
from dpstream.randomizers.cell_codes.levels import Levels


def kept_node_values(kept: KeptNodes, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the counts of all values, float64, shape (size, ...).

    `cells`, shape (size, ...), are counts minus the mean noise; further axes are for more trees.

    >>> kept_node_values(KeptNodes(4), np.array([1.0, 3.0, 3.0, 10.0])).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    return np.diff(_prefixes(kept, cells), axis=0)


def _prefixes(kept: KeptNodes, cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the total count of the values before each position, shape (size + 1, ...)."""
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
    """Fit the counts of all values to the counts of all nodes, float64, shape (size, ...).

    Args:
        levels: The tree.
        cells: Counts minus the mean noise, shape (cells, ...); further axes are for more trees.
        variances: Positive variance of a cell on each level, from the root down; None if all are
            equal. Infinite for an unused level; the lowest level must be used.

    >>> tree = Levels(2, (2,))
    >>> level_values(tree, np.array([120.0, 60.0, 30.0])).tolist()
    [70.0, 40.0]
    """
    own = [1.0] * levels.messages if variances is None else variances
    nodes = np.split(cells, np.cumsum(levels.nodes[:-1]))
    values, variance = nodes[-1], own[-1]
    # On the way up: the excess of a node over the sum of its children so far.
    surplus = []
    for counts, branching, prior in zip(
        reversed(nodes[:-1]), reversed(levels.branching), list(own[:-1])[::-1], strict=True
    ):
        below = values.reshape(len(counts), branching, *counts.shape[1:]).sum(axis=1)
        of_sum = branching * variance
        share = 0.0 if math.isinf(prior) else of_sum / (of_sum + prior)
        surplus.append(share * (counts - below))
        values, variance = below + surplus[-1], of_sum * (1 - share)
    # On the way down, it is split equally among children, which are equally accurate.
    extra = np.zeros_like(nodes[0])
    for gained, branching in zip(reversed(surplus), levels.branching, strict=True):
        extra = np.repeat((extra + gained) / branching, branching, axis=0)
    return (nodes[-1] + extra)[: levels.size]
