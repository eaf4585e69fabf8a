"""Standard errors of means over windows of epochs, computed from published estimates.

If m estimates have independent errors, the variance of their mean is the sum of their variances,
divided by m^2. If an estimate builds on the previous one, the covariances of all pairs of epochs in
the window are added.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from dpstream.aggregators.change_errors import FollowedErrors, ReceivedErrors, deviation_of
from dpstream.aggregators.estimate import GAP, Published
from dpstream.randomizers.change_kernel import Kernel


class WindowErrors(Protocol):
    """Variance of the sum of a window's published estimates.

    Attributes:
        from_start: True if `next` needs all epochs of a horizon, not only those of the window.
    """

    from_start: ClassVar[bool]

    @property
    def variance(self) -> float:
        """Variance of the sum of the estimates since `open_window`; for panels, one per row."""

    def open_window(self) -> None:
        """Start another window with the next epoch."""

    def open_horizon(self) -> None:
        """Start another horizon with the next epoch; its errors are independent of earlier ones."""

    def next(self, published: Published | None, population: int) -> None:
        """Add the next epoch; an epoch without an estimate adds nothing."""


class IndependentWindows:
    """Variances of sums of estimates with independent errors.

    If users do not answer twice in a window, the errors of its samples are negatively correlated
    where values persist, so the variance is an upper bound. If users' values cancel over the
    window, the variance is too small, by at most the factor (T - 1) / T with T samples.

    >>> from dpstream.aggregators.estimate import Estimate
    >>> errors = IndependentWindows()
    >>> errors.next(Estimate.around(50.0, 3.0, 5.9, 80, 100), 100)
    >>> errors.next(Estimate.around(60.0, 4.0, 7.8, 70, 100), 100)
    >>> errors.variance
    25.0
    """

    from_start: ClassVar[bool] = False

    def __init__(self) -> None:
        self.variance = 0.0

    def open_window(self) -> None:
        self.variance = 0.0

    def open_horizon(self) -> None:
        """Do nothing, as all epochs are independent."""

    def next(self, published: Published | None, population: int) -> None:
        deviation = None if published is None else deviation_of(published)
        self.variance += 0.0 if deviation is None else deviation**2


class RetainedWindows:
    """Variances of sums if each error is a fraction of the previous one plus noise.

    At a `GAP`, all of the error remains instead of the fraction `kept`.
    """

    from_start: ClassVar[bool] = True

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._with_sum = 0.0
        self.variance = 0.0

    def open_window(self) -> None:
        self._with_sum = self.variance = 0.0

    def open_horizon(self) -> None:
        self._with_sum = 0.0

    def next(self, published: Published | None, population: int) -> None:
        if published is not None and GAP not in published.flags:
            self._with_sum *= self._kept
        deviation = None if published is None else deviation_of(published)
        if deviation is not None:
            self.variance += 2 * self._with_sum + deviation**2
            self._with_sum += deviation**2


class FollowedWindows:
    """Exact variances of sums of estimates that follow the previous one; see `WindowErrors`.

    Errors due to absent devices are added as if the same devices were always absent.
    """

    from_start: ClassVar[bool] = True

    def __init__(self, kernel: Kernel, received: ReceivedErrors) -> None:
        self._kernel, self._received = kernel, received
        self._noise = self._absence = 0.0
        self.open_horizon()

    @property
    def variance(self) -> float:
        return self._noise + self._absence**2

    @property
    def noise(self) -> float:
        """Variance of the noise in the latest estimate."""
        return self._errors.now.variance

    def open_window(self) -> None:
        self._noise = self._absence = 0.0
        self._with_sum = np.zeros(2)

    def open_horizon(self) -> None:
        self._errors = FollowedErrors(self._kernel, self._received)
        self._with_sum = np.zeros(2)

    def next(self, published: Published | None, population: int) -> None:
        self._errors.next(published, population)
        now = self._errors.now
        self._with_sum = self._errors.carried(*self._with_sum)
        if published is None:
            return
        self._noise += 2 * float(self._with_sum[0]) + now.variance
        self._absence += now.absence_error
        self._with_sum += (now.variance, now.covariance)
