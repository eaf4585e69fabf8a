"""How far changes between two epochs can be trusted: the errors of their estimates are related.

Where estimates follow what they were before, most of the error of one is still in the next, and
their difference is known better than either of them. How much they have in common follows from the
law, from who was there and from what was published, without any report.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from dpstream.aggregators.estimate import GAP
from dpstream.aggregators.published import Published


class ChangeErrors(Protocol):
    """The errors of the changes over so many epochs of one horizon, epoch by epoch."""

    def next(self, published: Published | None, population: int) -> float | None:
        """Go on by one epoch, from the first one of the horizon on.

        Args:
            published: the estimate of the epoch.
            population: how many users it is about.

        Returns:
            the standard deviation of what the epoch's estimate is above the one so many epochs
            before; None if there are not both.
        """
        ...


class KeptErrors:
    """Of estimates with a share of the one before in them, and independent errors besides.

    With a share of 0, errors of all epochs are independent. What is true of noise is taken to be
    true of silent devices: if they are always the same, errors have even more in common.

    >>> from dpstream.aggregators.estimate import Estimate
    >>> estimate = Estimate.around(100.0, 10.0, 19.6, reports=500, population=500)
    >>> errors = KeptErrors(1, kept=0.5)
    >>> [errors.next(each, 500) for each in (None, estimate, estimate)]
    [None, None, 10.0]

    Args:
        lag: how many epochs a change is about, at least 1.
        kept: the share, 0 to below 1; 1 for an epoch flagged `GAP`, where nothing came in.
    """

    def __init__(self, lag: int, kept: float) -> None:
        self._lag, self._kept = lag, kept
        # Of the latest epochs: the standard deviation, and the gaps up to then.
        self._before: deque[tuple[float | None, int]] = deque(maxlen=lag + 1)
        self._gaps = 0

    def next(self, published: Published | None, population: int) -> float | None:
        """See `ChangeErrors`."""
        deviation = None
        self._gaps += published is None or GAP in published.flags
        if published is not None:
            deviation = deviation_of(published)
        self._before.append((deviation, self._gaps))
        before, gaps = self._before[0]
        if len(self._before) <= self._lag or before is None or deviation is None:
            return None
        kept = self._kept ** (self._lag - (self._gaps - gaps))
        return math.sqrt(max(deviation**2 + (1 - 2 * kept) * before**2, 0.0))


def deviation_of(published: Published) -> float | None:
    """The standard deviation of every count of an epoch; None where nothing can be said."""
    headline = published.headline
    return None if headline is None else headline.standard_deviation
