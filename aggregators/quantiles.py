"""Estimate quantiles from noisy counts of all prefixes.

A quantile is the smallest value with at least the requested fraction of values at or below it. It
is found by bisection in increasing counts, which isotonic regression provides at no privacy cost.

Reference: Ghazi, Golowich, Kumar, Pagh, Velingker, "On the Power of Multiple Anonymous Messages",
2019, appendix E.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpstream.aggregators.counts import NoValuesError
from dpstream.aggregators.estimate import NORMAL_95
from dpstream.randomizers.code_variances import range_variances

if TYPE_CHECKING:
    from dpstream.aggregators.grid_counts import GridCounts


@dataclass(frozen=True, slots=True)
class ValueQuantile:
    """A quantile of integers: in the estimated distribution F, F(value - 1) < share <= F(value)."""

    share: float
    value: int
    ci95_low: int
    ci95_high: int


def quantile(counts: GridCounts, share: float) -> ValueQuantile:
    """Estimate the value below which a fraction `share` of the users' values lies, on one axis.

    The interval contains all values x that a 95 % test does not exclude. Of T values in total, the
    test excludes x if more than share * T are below x, or fewer than share * T are below x + 1.
    Both comparisons allow for the error of T, which is estimated too. Raises `ValueError` if share
    is not between 0 and 1, or there are several axes or no values.

    >>> from dpstream.aggregators.grid_counts import GridCounts
    >>> from dpstream.randomizers.cell_codes.levels import Levels
    >>> cells = np.array([1000, 400, 600, 100, 300, 600, 0]) + 50
    >>> window = GridCounts.from_cells(Levels(4, (2, 2)), cells, 50.0, 50.0, contributors=1000)
    >>> quantile(window, 0.3)
    ValueQuantile(share=0.3, value=1, ci95_low=1, ci95_high=1)
    """
    if not 0 < share < 1:
        raise ValueError(f"quantile is {share}; expected a number above 0 and below 1")
    # Imported here because devices import this module but do not need scipy.
    from scipy.optimize import isotonic_regression

    axis = counts.only_axis
    ends = np.arange(axis.size + 1)
    prefixes, _ = counts.cumulative()
    total = prefixes[-1]
    if total <= 0:
        raise NoValuesError(f"about {total:.0f} users have a value; a quantile requires at least 1")
    increasing = np.clip(isotonic_regression(prefixes).x, 0, total)
    increasing[0], increasing[-1] = 0, total
    target = share * total
    value = int(np.searchsorted(increasing, target)) - 1
    # Variance of prefix - share * (prefix + rest), from those of prefix, rest and total.
    before, after = range_variances(axis, 0, ends), range_variances(axis, ends, axis.size)
    variances = (1 - share) * before + share * after - share * (1 - share) * before[-1]
    margin = NORMAL_95 * np.sqrt(counts.noise_variance * variances)
    possible = (increasing[:-1] - margin[:-1] <= target) & (target <= increasing[1:] + margin[1:])
    low, high = np.flatnonzero(possible)[[0, -1]]
    return ValueQuantile(share, value, int(low), int(high))
