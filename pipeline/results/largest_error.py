"""How far off the worst of all estimates is: bounds that all epochs keep at once."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95

EXCEEDED: Final = 0.05
"""How likely it is, at most, that some estimate is further off."""

_PRECISION: Final = 1e-13
# Beyond, a normal probability is nothing beside any other.
_SCORE_OF_NOTHING: Final = 40.0


def largest_error(deviations: NDArray[np.float64], exceeded: float = EXCEEDED) -> float:
    """The bound x with sum P(|error_t| > x) = `exceeded`, for normal errors.

    That some error is larger is no likelier than this, however the errors go together.

    Args:
        deviations: standard deviations of the errors, positive, shape (epochs,).
        exceeded: a probability.

    >>> round(largest_error(np.ones(1)), 2), round(largest_error(np.ones(1000)), 2)
    (1.96, 4.06)
    """
    distinct, times = np.unique(deviations, return_counts=True)
    bound = float(distinct[-1]) * _two_sided(exceeded)
    # The sum is convex and falls: Newton's steps from below come nearer and never pass it.
    while True:
        scores = np.minimum(bound / distinct, _SCORE_OF_NOTHING)
        tails = np.array([math.erfc(score) for score in (scores / math.sqrt(2)).tolist()])
        slopes = np.exp(-np.square(scores) / 2) * math.sqrt(2 / math.pi) / distinct
        step = (float(times @ tails) - exceeded) / float(times @ slopes)
        bound += step
        if step <= _PRECISION * bound:
            return bound


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
    return _two_sided(exceeded / epochs) / NORMAL_95


def _two_sided(probability: float) -> float:
    """The score beyond which, on either side, a standard normal lies with this probability."""
    return -NormalDist().inv_cdf(probability / 2)
