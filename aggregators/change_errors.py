"""Standard errors of changes between two epochs whose estimates have correlated errors.

If an estimate builds on the previous one, it contains most of that one's error. So the difference
between the two has a smaller error than either. The correlation is computed from the mechanism,
participation and published estimates.

If devices boost changes, a fraction of each estimate's error, and of its boosts' error, remains in
every later estimate. The recursion of the estimates, without new noise, yields this fraction.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, INCOMPLETE, Published
from dpstream.aggregators.followed import Followed
from dpstream.randomizers.change_kernel import Kernel

ReceivedErrors: TypeAlias = Callable[[int, int, float], tuple[float, float]]
"""Function of the numbers of reports, of enrolled devices and (roughly) of devices with value 1. It
returns the received count's variance and its standard deviation due to absent devices."""

Covariances: TypeAlias = NDArray[np.float64]


class FollowedErrors:
    """Propagate the errors of estimates that build on previous ones, using only published data."""

    def __init__(self, kernel: Kernel, received: ReceivedErrors) -> None:
        self._kernel, self._received = kernel, received
        self._value = 0.0
        self.now = Followed()

    def next(self, published: Published | None, population: int) -> None:
        estimate = None if published is None else published.headline
        reports = 0 if estimate is None else estimate.reports
        if estimate is not None and estimate.value is not None:
            self._value = estimate.value
        self.now = self._after(reports, population)

    def carried(self, with_value: Covariances, with_boosts: Covariances) -> Covariances:
        """Return covariances of earlier errors with the value and the boosts, one epoch later.

        The result has shape (2, ...).
        """
        boost, decay = self._kernel.boost, self._kernel.decay
        later = with_value
        if self.now.released:
            later = (boost * with_value - decay * with_boosts) / (1 + boost)
        return np.array([later, decay * with_boosts + boost * (later - with_value)])

    def _after(self, reports: int, population: int) -> Followed:
        """Propagate variances by one epoch. The value itself comes from the published estimate."""
        if not reports:
            return self.now.without_reports(self._kernel.decay)
        variance, unseen = self._received(reports, population, self._value)
        boost, decay = self._kernel.boost, self._kernel.decay
        return self.now.with_reports(boost, decay, 0.0, variance, unseen)


class FollowedChanges:
    """Compute exact standard errors of changes over `lag` epochs; see `ChangeErrors`.

    Errors due to absent devices are assumed independent between the two epochs. If the same devices
    are absent in both epochs, these errors cancel unless the devices' values change.
    """

    def __init__(self, kernel: Kernel, received: ReceivedErrors, lag: int) -> None:
        self._errors, self._lag = FollowedErrors(kernel, received), lag
        # One column per recent epoch, the latest first. Rows: covariance of its error with the
        # current value and with the current boosts, its variance, its absence error.
        self._before = np.zeros((4, 0))

    @property
    def noise(self) -> float:
        """Variance of the noise in the latest estimate."""
        return self._errors.now.variance

    def next(self, published: Published | None, population: int) -> float | None:
        followed = self._errors.now
        self._errors.next(published, population)
        now = self._errors.now
        kept = np.vstack([self._errors.carried(*self._before[:2]), self._before[2:]])
        own = [[now.variance], [now.covariance], [now.variance], [now.absence_error]]
        self._before = np.hstack([own, kept[:, : self._lag]])
        headline = None if published is None else published.headline
        if headline is None or headline.value is None:
            return None
        if followed.epoch < self._lag:
            return None
        common, _, variance, absence_error = self._before[:, self._lag].tolist()
        noise = max(now.variance + variance - 2 * common, 0.0)
        # There was no estimate before the first reports.
        return math.hypot(math.sqrt(noise), now.absence_error, absence_error) if variance else None


class ChangeErrors(Protocol):
    """Standard errors of changes over a fixed number of epochs, computed from epoch 1 onwards."""

    def next(self, published: Published | None, population: int) -> float | None:
        """Return the standard error of the next epoch's change, or None if it is unknown.

        The rows of panels have different errors: float64, shape (rows,), nan for an unknown one.
        """


class RetainedErrors:
    """Standard errors of changes if each error is a fraction of the previous error plus noise.

    With a fraction of 0, errors of all epochs are independent. Errors due to absent devices are
    treated like noise; if the same devices are always absent, errors are correlated more strongly.

    >>> from dpstream.aggregators.estimate import Estimate
    >>> estimate = Estimate.around(100.0, 10.0, 19.6, reports=500, population=500)
    >>> errors = RetainedErrors(1, kept=0.5)
    >>> [errors.next(each, 500) for each in (None, estimate, estimate)]
    [None, None, 10.0]

    Args:
        lag: Number of epochs a change covers.
        kept: Fraction of the previous error that remains, in [0, 1); at a `GAP`, all of it remains.
    """

    def __init__(self, lag: int, kept: float) -> None:
        self._lag, self._kept = lag, kept
        # For each recent epoch: its standard error, and the number of gaps up to it.
        self._before: deque[tuple[float | None, int]] = deque(maxlen=lag + 1)
        self._gaps = 0

    def next(self, published: Published | None, population: int) -> float | None:
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


class SampledChanges:
    """Upper bounds on the errors of changes, for samples that have no users in common.

    The errors of such samples are negatively correlated where values persist. The bound is attained
    if all values persist. `window` is the number of epochs that each published mean covers.
    """

    def __init__(self, lag: int, window: int = 1) -> None:
        # Standard errors of recent epochs, and standard deviations of a value between users.
        self._before: deque[tuple[float, float, int] | None] = deque(maxlen=lag + 1)
        self._window = window

    def next(self, published: Published | None, population: int) -> float | None:
        estimate = None if published is None else published.headline
        now = None
        if estimate and estimate.value is not None and estimate.standard_error is not None:
            share = min(max(estimate.value / max(1, population), 0.0), 1.0)
            # An incomplete mean may be of a single epoch.
            epochs = 1 if published is None or INCOMPLETE in published.flags else self._window
            now = estimate.standard_error, math.sqrt(share * (1 - share)), epochs
        self._before.append(now)
        before = self._before[0]
        if len(self._before) < (self._before.maxlen or 0) or before is None or now is None:
            return None
        both = 2 * before[1] * now[1]
        if self._window > 1:
            # The sum over epochs of s(1 - s) is at most that at the mean share.
            both = (before[1] ** 2 + now[1] ** 2) / min(before[2], now[2])
        common = population**2 / max(1, population - 1) * both
        return math.sqrt(before[0] ** 2 + now[0] ** 2 + common)


def deviation_of(published: Published) -> float | None:
    headline = published.headline
    return None if headline is None else headline.standard_error
