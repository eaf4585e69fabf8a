"""Norm-Sub: the counts nearest to the estimated ones that could be counts of a population."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def norm_sub(values: NDArray[np.float64], population: float) -> NDArray[np.float64]:
    """Shift all values by the same number and set negative ones to 0, so that they add up.

    This is the projection onto the counts that are not negative and add up to the population, with
    the shift found exactly (Wang et al., "Locally differentially private frequency estimation with
    consistency", 2020, Norm-Sub). It is biased: small counts come out too large and large ones too
    small. It is for shares and pictures, beside the unbiased estimates and never in their place.

    Args:
        values: shape (items,), in users; everybody is supposed to have one of the items.
        population: users, not negative.

    Returns:
        float64, shape (items,).

    >>> norm_sub(np.array([70.0, 40.0, -20.0]), 100).tolist()
    [65.0, 35.0, 0.0]
    """
    descending = np.sort(np.asarray(values, np.float64))[::-1]
    shifts = (np.cumsum(descending) - population) / np.arange(1, len(descending) + 1)
    # The values above their shift are the largest ones; there is one always, but for rounding.
    kept = max(1, int(np.count_nonzero(descending > shifts)))
    projected: NDArray[np.float64] = np.maximum(values - shifts[kept - 1], 0.0)
    return projected
