"""Goodness of fit of counts to a distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def fit(
    counts: NDArray[np.int64], cdf: Callable[[NDArray[np.int64]], NDArray[np.float64]]
) -> float:
    """Return the p-value of a chi-square test, with at least 10 expected counts per group.

    If nearly all of the expected mass is outside the counts, there is only one group. So the
    largest distance between distribution functions is tested too (Dvoretzky, Kiefer, Wolfowitz).
    """
    edges = np.unique(np.quantile(counts, np.linspace(0, 1, 60)).astype(np.int64))
    below = np.searchsorted(np.sort(counts), edges, "right")
    distance = np.abs(below / len(counts) - cdf(edges)).max()
    far = 2 * np.exp(-2 * len(counts) * distance**2)
    return min(1.0, 2 * min(float(far), _chi_square(below, cdf(edges), len(counts))))


def _chi_square(below: NDArray[np.int64], shares: NDArray[np.float64], total: int) -> float:
    observed = np.diff(np.concatenate(([0], below, [total])))
    expected = np.diff(np.concatenate(([0.0], shares, [1.0]))) * total
    grouped: list[list[float]] = []
    waiting = [0.0, 0.0]
    for pair in zip(observed.tolist(), expected.tolist(), strict=True):
        waiting = [a + b for a, b in zip(waiting, pair, strict=True)]
        if waiting[1] >= 10:
            grouped.append(waiting)
            waiting = [0.0, 0.0]
    # The remaining mass is too small for a separate group.
    if grouped:
        grouped[-1] = [a + b for a, b in zip(grouped[-1], waiting, strict=True)]
    if len(grouped) < 2:
        rare = total - int(grouped[0][0]) if grouped else 0
        return float(stats.poisson.sf(rare - 1, 10)) if rare else 1.0
    table = np.array(grouped).T
    return float(stats.chisquare(table[0], table[1] * table[0].sum() / table[1].sum()).pvalue)
