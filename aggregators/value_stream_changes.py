"""value_stream: how far a change between two epochs can be trusted.

Of the error of an estimate, and of the boosts estimated with it, every later epoch keeps a share
that its own letters have no part in: the recursion of the estimates, run on without any letters.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from aggregators.published import Published
from aggregators.value_stream import Followed, received_errors
from randomizers.value_stream import ValueStreamLaw


class ValueStreamChanges:
    """The errors of changes, exactly; see `aggregators.changes.ChangeErrors`.

    What silent devices may change at the two epochs is added up: it is never taken to cancel out.

    Args:
        law: the constants of the job.
        lag: how many epochs a change is about, at least 1.
    """

    def __init__(self, law: ValueStreamLaw, lag: int) -> None:
        self._law, self._lag = law, lag
        self._followed = Followed()
        self._value = 0.0
        # Of the latest epochs, the last one first: covariances of their errors with those of the
        # present value and boosts; then variances, and deviations due to silence, of their own.
        self._before = np.zeros((4, 0))

    def next(self, published: Published | None, population: int) -> float | None:
        """See `ChangeErrors`."""
        estimate = None if published is None else published.headline
        reports = 0 if estimate is None else estimate.reports
        self._followed, followed = self._after(reports, population), self._followed
        kept = self._kept(bool(reports))
        now = self._followed
        own = [[now.variance], [now.covariance], [now.variance], [now.silence]]
        self._before = np.hstack([own, kept[:, : self._lag]])
        if estimate is None or estimate.value is None:
            return None
        self._value = estimate.value
        if followed.epoch < self._lag:
            return None
        common, _, variance, silence = self._before[:, self._lag].tolist()
        noise = max(now.variance + variance - 2 * common, 0.0)
        # Before the first reports there was no estimate.
        return math.hypot(math.sqrt(noise), now.silence + silence) if variance else None

    def _after(self, reports: int, population: int) -> Followed[float]:
        """Variances of the next epoch; its value is not followed, which is published."""
        if not reports:
            return self._followed.without_reports(self._law.decay)
        variance, unseen = received_errors(self._law, reports, population, self._value)
        boost, decay = self._law.boost, self._law.decay
        return self._followed.with_reports(boost, decay, 0.0, variance, unseen)

    def _kept(self, released: bool) -> NDArray[np.float64]:
        """What epochs before the next one have in common with it."""
        boost, decay = self._law.boost, self._law.decay
        with_value, with_boosts, *own = self._before
        later = with_value
        if released:
            later = (boost * with_value - decay * with_boosts) / (1 + boost)
        return np.array([later, decay * with_boosts + boost * (later - with_value), *own])
