"""Below which value a share of all values lies, from noisy counts of all prefixes.

Appendix E of "On the Power of Multiple Anonymous Messages" (Ghazi, Golowich, Kumar, Pagh, Velingker
2019): the least value up to which there are at least as many values as wanted, found by bisection.
For that the counts have to increase, which isotonic regression sees to; it costs no privacy.
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
    """A quantile of whole numbers: F(value - 1) < share <= F(value), as far as is known.

    Attributes:
        share: of all values.
        value: from 0 on.
        low: the least value in the 95 % interval.
        high: the largest value in it.
    """

    share: float
    value: int
    low: int
    high: int


def quantile(counts: GridCounts, share: float) -> ValueQuantile:
    """The value below which there is so large a share of the values that users have.

    The interval has all values x of which a 95 % test does not tell that they are none: with
    T values in all, more than share T lie before x, or fewer than that before x + 1. Both tests
    allow for the error of T, which is estimated too.

    Args:
        counts: over one axis.
        share: above 0 and below 1; 0.5 is the median.

    Raises:
        ValueError: it is not, there are several axes, or by all that is known there are no values.

    >>> from dpstream.aggregators.grid_counts import GridCounts
    >>> from dpstream.randomizers.cell_codes.levels import Levels
    >>> cells = np.array([1000, 400, 600, 100, 300, 600, 0]) + 50
    >>> window = GridCounts.from_cells(Levels(4, (2, 2)), cells, 50.0, 50.0, contributors=1000)
    >>> quantile(window, 0.3)
    ValueQuantile(share=0.3, value=1, low=1, high=1)
    """
    if not 0 < share < 1:
        raise ValueError(f"quantile {share}, must lie between 0 and 1")
    # Imported where it is used: devices import what queries are made of, and not scipy.
    from scipy.optimize import isotonic_regression

    axis = counts.only_axis
    ends = np.arange(axis.size + 1)
    prefixes, _ = counts.cumulative()
    total = prefixes[-1]
    if total <= 0:
        raise NoValuesError(f"about {total:.0f} users have a value, too few for a quantile")
    increasing = np.clip(isotonic_regression(prefixes).x, 0, total)
    increasing[0], increasing[-1] = 0, total
    wanted = share * total
    value = int(np.searchsorted(increasing, wanted)) - 1
    # Of prefix - share * (prefix + rest), from the variances of the prefix, the rest and the whole.
    before, after = range_variances(axis, 0, ends), range_variances(axis, ends, axis.size)
    variances = (1 - share) * before + share * after - share * (1 - share) * before[-1]
    margin = NORMAL_95 * np.sqrt(counts.noise_variance * variances)
    possible = (increasing[:-1] - margin[:-1] <= wanted) & (wanted <= increasing[1:] + margin[1:])
    low, high = np.flatnonzero(possible)[[0, -1]]
    return ValueQuantile(share, value, int(low), int(high))
