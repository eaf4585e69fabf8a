"""Optimal probabilities of the tree levels from which a device draws the one it reports on.

Coarse levels are best for wide ranges, and fine levels for narrow ranges. A least-squares fit
combines all levels for every range. A numerical search minimizes the mean variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, root

from dpstream.randomizers.value_tree import half_difference

WEIGHT_TOTAL = 1 << 20
"""Sum of integer weights, apart from rounding."""

_MOST_LOGIT = 8.0
# A level whose best probability is below this is never drawn.
_LEAST_PROBABILITY = 0.01


def mean_range_energies(levels: int) -> NDArray[np.float64]:
    """Return the mean energy of ranges in the wavelets of each level; float64, shape (levels,).

    The energy of a range on a level is the sum of its squared inner products with the wavelets of
    the level's nodes. Levels are those from 0 to the last but one. The mean is over all ranges.
    """
    buckets = 1 << levels
    ranges = buckets * (buckets + 1) // 2
    energies = np.empty(levels)
    for level in range(levels):
        support = buckets >> level
        part = half_difference(np.arange(support), support) / np.sqrt(support)
        # Sum over all pairs of ends: the squares of both minus twice the products within a node.
        squares, products = np.square(part).sum(), part.sum() ** 2
        energies[level] = (1 << level) * ((buckets + 1) * squares - products) / ranges
    return energies


def optimal_level_weights(unit_variances: NDArray[np.float64]) -> tuple[int, ...]:
    """Return integer weights for levels 1 to L that minimize the mean variance over all ranges.

    The last level also estimates all other levels, so its weight is the largest. The weight of
    level 1 is usually 0, since the root above it is known. With equal variances, the standard
    deviation of a range is 8 to 18 % smaller than with uniformly drawn levels (4 to 4,096 buckets).
    `unit_variances` are the variances of a node's estimate from its own level if every device
    reported on that level. The last weight is positive; all weights sum to about `WEIGHT_TOTAL`.

    >>> weights = optimal_level_weights(np.ones(4))
    >>> [round(weight / WEIGHT_TOTAL, 2) for weight in weights]
    [0.0, 0.17, 0.2, 0.63]
    """
    problem = _MeanVariance(
        mean_range_energies(len(unit_variances)),
        np.exp2(np.arange(len(unit_variances))[::-1]) / unit_variances,
    )
    shares = problem.nearly_best()
    drawn = shares >= _LEAST_PROBABILITY
    drawn[-1] = True
    # These weights identify a job, so they must not depend on the processor's rounding. It moves
    # the end of the search, but not the root of the optimality conditions.
    shares = problem.best(shares, drawn)
    return tuple(np.rint(WEIGHT_TOTAL * shares).astype(int).tolist())


@dataclass(frozen=True)
class _MeanVariance:
    """Mean variance over all ranges, as a function of each level's probability.

    `energies` is the result of `mean_range_energies`. `level_precision` is the precision with which
    a level estimates each parent node if every device reports on that level. Both are float64,
    shape (L,).
    """

    energies: NDArray[np.float64]
    level_precision: NDArray[np.float64]

    def at(
        self, logits: NDArray[np.float64]
    ) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        """Return the log mean variance, its gradient in the logits, and the probabilities."""
        powers = np.exp(logits - logits.max())
        probabilities = powers / powers.sum()
        precisions = np.cumsum((self.level_precision * probabilities)[::-1])[::-1]
        mean = (self.energies / precisions).sum()
        gain = self.level_precision * np.cumsum(self.energies / np.square(precisions)) / mean
        return float(np.log(mean)), probabilities * (1.0 - gain), probabilities

    def nearly_best(self) -> NDArray[np.float64]:
        """Return the probabilities of all levels at the end of the search; some are nearly 0."""
        levels = len(self.level_precision)
        found = minimize(
            lambda logits: self.at(logits)[:2],
            np.zeros(levels),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-_MOST_LOGIT, _MOST_LOGIT)] * levels,
        )
        return self.at(found.x)[2]

    def best(self, nearly: NDArray[np.float64], drawn: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the best probabilities, where the gradient is 0; levels not `drawn` get 0."""
        free = np.flatnonzero(drawn)[:-1]
        logits = np.full(len(drawn), -np.inf)
        logits[drawn] = np.log(nearly[drawn] / nearly[-1])

        def with_free(values: NDArray[np.float64]) -> NDArray[np.float64]:
            placed = logits.copy()
            placed[free] = values
            return placed

        found = root(lambda values: self.at(with_free(values))[1][free], logits[free], tol=1e-14)
        return self.at(with_free(found.x))[2]
