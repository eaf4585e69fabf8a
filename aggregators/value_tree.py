"""Least squares over a tree of values: all levels made one, with the population as their sum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.tree_smoothing import TreeEstimates, smoothed_increments


def consistent_buckets(
    levels: Sequence[NDArray[np.float64]],
    variances: Sequence[float] | NDArray[np.float64],
    population: float,
) -> NDArray[np.float64]:
    """The counts of all buckets that fit the estimates of all nodes best.

    The best linear unbiased estimate for the given variances (Hay et al., "Boosting the accuracy of
    differentially private histograms through consistency", 2010); its own variances are
    `dpstream.randomizers.value_tree.range_variances`. Buckets over the values are to this what
    epochs are to `dpstream.aggregators.tree_smoothing`.

    Args:
        levels: estimates of the 2^l nodes of each of the levels 1 to L.
        variances: of a node's estimate, for each level; infinite for a level to be left out.
        population: the number of values, known exactly.

    Returns:
        float64, shape (2^L,).

    >>> consistent_buckets([np.array([70.0, 50.0])], [1.0], 100).tolist()
    [60.0, 40.0]
    """
    tree = [
        TreeEstimates(values[:, None], np.full(len(values), variance))
        for values, variance in zip(levels, variances, strict=True)
    ]
    root = TreeEstimates(np.array([[float(population)]]), np.zeros(1))
    return smoothed_increments([*reversed(tree), root])[:, 0]
