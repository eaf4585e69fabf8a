"""How far a change between two epochs can be trusted, where estimates follow kernels.

Of the error of an estimate, and of the boosts estimated with it, every later epoch keeps a share
that its own letters have no part in: the recursion of the estimates, run on without any letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.followed import Followed
from dpstream.aggregators.published import Published
from dpstream.randomizers.change_kernel import Kernel

ReceivedErrors: TypeAlias = Callable[[int, int, float], tuple[float, float]]
"""From the reports of an epoch, the devices enrolled and about how many have the value 1: the
variance of what comes in, and the standard deviation that is due to silent devices."""


class FollowedChanges:
    """The errors of changes, exactly; see `dpstream.aggregators.changes.ChangeErrors`.

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
