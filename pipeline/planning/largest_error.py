"""How far off the worst of all estimates is: bounds that all epochs keep at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from aggregators.estimate import NORMAL_95

EXCEEDED: Final = 0.05
"""How likely it is, at most, that some estimate is further off."""


def largest_error(deviations: NDArray[np.float64], exceeded: float = EXCEEDED) -> float:
    """The bound x with sum P(|error_t| > x) = `exceeded`, for normal errors.

    That some error is larger is no likelier than this, however the errors go together.

    Args:
        deviations: standard deviations of the errors, positive, shape (epochs,).
        exceeded: a probability.

    >>> round(largest_error(np.ones(1)), 2), round(largest_error(np.ones(1000)), 2)
    (1.96, 4.06)
    """

    def excess(bound: float) -> float:
        return 2 * float(norm.sf(bound / deviations).sum()) - exceeded

    largest = float(deviations.max())
    alone = largest * float(norm.isf(exceeded / 2))
    together = largest * float(norm.isf(exceeded / 2 / len(deviations)))
    # At the ends, with one epoch or with all alike, rounding may have either sign.
    return float(brentq(excess, alone * (1 - 1e-9), together * (1 + 1e-9)))


def widening(epochs: int, exceeded: float = EXCEEDED) -> float:
    """How many times as wide as 95 % intervals are those that all epochs keep to at once.

    For normal errors: each epoch leaves the wider interval with probability `exceeded` / `epochs`,
    so that some epoch does is no likelier than `exceeded`, however the errors go together. It is
    known before the first epoch; `largest_error` is as wide at every epoch and knows them all.

    Args:
        epochs: how many there are in all, those to come included.
        exceeded: a probability.

    >>> round(widening(1), 6), round(widening(170), 3)
    (1.0, 1.847)
    """
    return float(norm.isf(exceeded / 2 / epochs)) / NORMAL_95
