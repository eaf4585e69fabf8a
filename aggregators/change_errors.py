"""Standard deviations of changes between two epochs, whose estimates have correlated errors.

Where estimates follow what they were before, the next estimate contains most of the error of the
one before, and their difference has less error than either of them. The correlation follows from
the law, from attendance and from what was published, without any report.

Where estimates follow kernels, every later epoch keeps a share of the error of an estimate, and of
the boosts estimated with it: the recursion of the estimates, applied without any letters.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Published
from dpstream.aggregators.followed import Followed
from dpstream.randomizers.change_kernel import Kernel

ReceivedErrors: TypeAlias = Callable[[int, int, float], tuple[float, float]]
"""From the reports of an epoch, the devices enrolled and about how many have the value 1: the
variance of what comes in, and the standard deviation that is due to silent devices."""


class FollowedChanges:
    """The errors of changes, exactly; see `ChangeErrors`.

    What silent devices may change at the two epochs is taken to have nothing in common. Where the
    same ones are silent at both it cancels out in part, as far as they have kept their values.

    Args:
        kernel: how changes are followed.
        received: how far what comes in is off.
        lag: how many epochs a change is about, at least 1.
    """

    def __init__(self, kernel: Kernel, received: ReceivedErrors, lag: int) -> None:
        self._kernel, self._received, self._lag = kernel, received, lag
        self._followed = Followed()
        self._value = 0.0
        # Of the latest epochs, the last one first: covariances of their errors with those of the
        # present value and boosts; then variances, and deviations due to silence, of their own.
        self._before = np.zeros((4, 0))

    def next(self, published: Published | None, population: int) -> float | None:
        """See `ChangeErrors`."""
        estimate = None if published is None else published.headline
        reports = 0 if estimate is None else estimate.reports
        if estimate is not None and estimate.value is not None:
            self._value = estimate.value
        self._followed, followed = self._after(reports, population), self._followed
        kept = self._kept(bool(reports))
        now = self._followed
        own = [[now.variance], [now.covariance], [now.variance], [now.silence]]
        self._before = np.hstack([own, kept[:, : self._lag]])
        if estimate is None or estimate.value is None:
            return None
        if followed.epoch < self._lag:
            return None
        common, _, variance, silence = self._before[:, self._lag].tolist()
        noise = max(now.variance + variance - 2 * common, 0.0)
        # Before the first reports there was no estimate.
        return math.hypot(math.sqrt(noise), now.silence, silence) if variance else None

    def _after(self, reports: int, population: int) -> Followed:
        """Variances of the next epoch; its value is not followed, which is published."""
        if not reports:
            return self._followed.without_reports(self._kernel.decay)
        variance, unseen = self._received(reports, population, self._value)
        boost, decay = self._kernel.boost, self._kernel.decay
        return self._followed.with_reports(boost, decay, 0.0, variance, unseen)

    def _kept(self, released: bool) -> NDArray[np.float64]:
        """What epochs before the next one have in common with it."""
        boost, decay = self._kernel.boost, self._kernel.decay
        with_value, with_boosts, *own = self._before
        later = with_value
        if released:
            later = (boost * with_value - decay * with_boosts) / (1 + boost)
        return np.array([later, decay * with_boosts + boost * (later - with_value), *own])


class ChangeErrors(Protocol):
    """The errors of changes over a fixed number of epochs of one horizon, epoch by epoch."""

    def next(self, published: Published | None, population: int) -> float | None:
        """Go on by one epoch, from the first one of the horizon on.

        Args:
            published: the estimate of the epoch.
            population: how many users it is about.

        Returns:
            the standard deviation of the difference between the epoch's estimate and the earlier
            one; None unless both exist.
        """
        ...


class KeptErrors:
    """Errors of estimates that each contain a share of the previous one, and independent noise.

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
