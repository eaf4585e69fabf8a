"""Ratios, shares, differences and sums of published estimates, with intervals.

Functions of estimates, their variances and covariances alone: asking costs no privacy. Intervals
hold for errors that are close to normal. With a noisy denominator Y, an interval is Fieller's: all
ratios r for which X - r Y differs from 0 by at most z standard deviations. It exists as an interval
if Y itself is more than z standard deviations above 0; otherwise the ratio is refused.

Given that it is answered, a 95 % interval contains the ratio with a probability of .95 to .97 if
the true denominator is 2 or more standard deviations. Below that it is .92 to .94 for ratios near
.3, and less for ratios above 1 (.85 at 1 standard deviation), so such ratios are flagged.

References: Fieller, "Some problems in interval estimation", 1954; Donner and Zou, "Closed-form
confidence intervals for functions of the normal mean and standard deviation", 2012 (differences).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95

WEAK_DENOMINATOR: Final = "weak_denominator"
"""Flag: the denominator is below 3 standard deviations, so the interval may hold less often."""

NO_DENOMINATOR: Final = "the denominator is not distinguishable from 0"

_WEAK: Final = 3.0


@dataclass(frozen=True, slots=True)
class Amount:
    """An estimated number of users, with the variance of its error; 0 for a public head count."""

    value: float
    variance: float = 0.0

    @property
    def deviation(self) -> float:
        return math.sqrt(self.variance)


@dataclass(frozen=True, slots=True)
class DerivedNumber:
    """A number computed from estimates, with its interval; or the reason for its absence.

    Attributes:
        value, low, high: The number and its interval; None if it is refused.
        standard_error: Standard error; None if the interval is not symmetric.
        refused: Sentence that states why there is no number.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    standard_error: float | None = None
    flags: tuple[str, ...] = ()
    refused: str | None = None

    @classmethod
    def around(cls, value: float, deviation: float, quantile: float) -> DerivedNumber:
        width = quantile * deviation
        return cls(value, value - width, value + width, deviation)

    @property
    def triple(self) -> tuple[float, float, float] | None:
        """Value, low and high; None if the number is refused."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return self.value, self.low, self.high

    def within(self, least: float, most: float) -> DerivedNumber:
        """Return the number with value and interval cut to [least, most]."""
        if self.triple is None:
            return self
        value, low, high = (min(max(each, least), most) for each in self.triple)
        return replace(self, value=value, low=low, high=high)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; `refused` replaces the numbers."""
        if self.refused is not None:
            return {"refused": self.refused}
        return {
            "value": self.value,
            "standard_error": self.standard_error,
            "ci95_low": self.low,
            "ci95_high": self.high,
            "flags": list(self.flags),
        }


def quantile_of(comparisons: int = 1) -> float:
    """Return the half-width, in standard deviations, of 95 % intervals that hold together.

    By Bonferroni, each of n intervals then fails with a probability of 5 % / n.

    >>> round(quantile_of(), 2), round(quantile_of(10), 2)
    (1.96, 2.81)
    """
    return NORMAL_95 if comparisons <= 1 else NormalDist().inv_cdf(1 - 0.025 / comparisons)


def ratio(
    numerator: Amount,
    denominator: Amount,
    covariance: float = 0.0,
    quantile: float = NORMAL_95,
) -> DerivedNumber:
    """Divide two estimates whose errors have this covariance; see the module for the interval.

    >>> found = ratio(Amount(300.0, 400.0), Amount(1_000.0, 2_500.0))
    >>> [round(each, 3) for each in found.triple or ()]
    [0.3, 0.254, 0.352]
    >>> ratio(Amount(300.0, 400.0), Amount(90.0, 2_500.0)).refused
    'the denominator is not distinguishable from 0'
    """
    x, y, squared = numerator.value, denominator.value, quantile**2
    if not y > quantile * denominator.deviation:
        return DerivedNumber(refused=NO_DENOMINATOR)
    if not denominator.variance:
        return DerivedNumber.around(x / y, numerator.deviation / y, quantile)
    first = y**2 - squared * denominator.variance
    middle = x * y - squared * covariance
    last = x**2 - squared * numerator.variance
    # Rounding alone can make this negative: with |covariance| <= sd * sd it is not.
    width = math.sqrt(max(middle**2 - first * last, 0.0))
    weak = y < _WEAK * denominator.deviation
    return DerivedNumber(
        x / y,
        (middle - width) / first,
        (middle + width) / first,
        flags=(WEAK_DENOMINATOR,) if weak else (),
    )


def share(
    part: Amount, whole: Amount, covariance: float = 0.0, quantile: float = NORMAL_95
) -> DerivedNumber:
    """Return the ratio of a part to its whole, cut to [0, 1].

    The covariance is the variance of the part if the whole is a sum of cells that include the part.
    """
    return ratio(part, whole, covariance, quantile).within(0.0, 1.0)


def difference(
    first: DerivedNumber, second: DerivedNumber, correlation: float = 0.0
) -> DerivedNumber:
    """Return `first` minus `second`, two ratios, with an interval by MOVER.

    The ratios are those of `ratio`, not cut; a refused one refuses the difference. `correlation` is
    that of their errors.
    """
    if first.triple is None or second.triple is None:
        return DerivedNumber(refused=first.refused or second.refused)
    (a, low_a, high_a), (b, low_b, high_b) = first.triple, second.triple

    def distance(one: float, other: float) -> float:
        return math.sqrt(max(one**2 + other**2 - 2 * correlation * one * other, 0.0))

    below, above = distance(a - low_a, high_b - b), distance(high_a - a, b - low_b)
    flags = tuple(dict.fromkeys(first.flags + second.flags))
    return DerivedNumber(a - b, a - b - below, a - b + above, flags=flags)


def correlation_of(ratios: tuple[float, float], covariances: NDArray[np.float64]) -> float:
    """Return about the correlation of the errors of two ratios, in [-1, 1].

    `covariances`, shape (4, 4), are those of the numerator and denominator of the first ratio, then
    of the second.

    >>> correlation_of((0.5, 0.5), np.eye(4))
    0.0
    """
    gradients = np.zeros((2, 4))
    gradients[0, :2], gradients[1, 2:] = (1.0, -ratios[0]), (1.0, -ratios[1])
    found = gradients @ covariances @ gradients.T
    product = float(found[0, 0] * found[1, 1])
    return min(max(float(found[0, 1]) / math.sqrt(product), -1.0), 1.0) if product > 0 else 0.0


def difference_of_groups(
    first: Amount,
    first_users: float,
    second: Amount,
    second_users: float,
    quantile: float = NORMAL_95,
    *,
    of_counts: bool = True,
) -> DerivedNumber:
    """Return the difference of two groups' shares (or means), given the groups' public sizes.

    The users of each group are seen as a sample: the interval holds for the effect of what sets the
    groups apart. For counts, this adds s (1 - s) / n for each share s of n users; for means, the
    variance includes what users add, so pass `of_counts=False`.
    """
    if not (first_users > 0 and second_users > 0):
        return DerivedNumber(refused=NO_DENOMINATOR)
    values, variance = [], 0.0
    for amount, users in ((first, first_users), (second, second_users)):
        part = amount.value / users
        values.append(part)
        variance += amount.variance / users**2
        if of_counts:
            part = min(max(part, 0.0), 1.0)
            variance += part * (1 - part) / users
    return DerivedNumber.around(values[0] - values[1], math.sqrt(variance), quantile)


def difference_of_parts(
    first: Amount,
    first_users: float,
    second: Amount,
    second_users: float,
    covariance: float = 0.0,
    quantile: float = NORMAL_95,
) -> DerivedNumber:
    """Return the difference of two shares whose users are the same, or some of them.

    The numbers of users are public.
    """
    if not (first_users > 0 and second_users > 0):
        return DerivedNumber(refused=NO_DENOMINATOR)
    variance = first.variance / first_users**2 + second.variance / second_users**2
    variance -= 2 * covariance / (first_users * second_users)
    value = first.value / first_users - second.value / second_users
    return DerivedNumber.around(value, math.sqrt(max(variance, 0.0)), quantile)


def difference_in_time(
    later: Amount,
    later_users: int,
    earlier: Amount,
    earlier_users: int,
    change_deviation: float,
    quantile: float = NORMAL_95,
) -> DerivedNumber:
    """Return the change of a share between two epochs, given the standard error of the change.

    The errors of the two epochs have the covariance (v + w - d^2) / 2, where v and w are their
    variances and d is the standard error of the difference of the two estimates.
    """
    common = (later.variance + earlier.variance - change_deviation**2) / 2
    return difference_of_parts(later, later_users, earlier, earlier_users, common, quantile)


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """A weighted sum of a question's cells plus a public number.

    `weights` are float64, shape (cells,).
    """

    weights: NDArray[np.float64]
    constant: float = 0.0

    def amount(self, cells: NDArray[np.float64], covariances: NDArray[np.float64]) -> Amount:
        value = self.constant + float(self.weights @ cells)
        return Amount(value, max(self.covariance(self, covariances), 0.0))

    def covariance(self, other: Margin, covariances: NDArray[np.float64]) -> float:
        return float(self.weights @ covariances @ other.weights)


def margin(
    chosen: NDArray[np.bool_], covariances: NDArray[np.float64], head_count: int | None = None
) -> Margin:
    """Return the sum of the chosen cells of a question.

    If the total of the cells is a public number of users, the sum is that number minus the other
    cells where this has the smaller variance.

    >>> found = margin(np.array([True, True, False]), np.eye(3), 100)
    >>> found.amount(np.array([50.0, 30.0, 22.0]), np.eye(3))
    Amount(value=78.0, variance=1.0)

    Args:
        chosen: Cells to sum, bool, shape (cells,).
        covariances: Covariances of the cells' errors, shape (cells, cells).
        head_count: Number of users, each of whom is in exactly one cell; None if unknown.
    """
    total = Margin(chosen.astype(np.float64))
    if head_count is None:
        return total
    others = Margin(-(~chosen).astype(np.float64), head_count)
    # By rounding, the sum of all cells can seem to be known exactly, or better.
    fewer = others.covariance(others, covariances) < total.covariance(total, covariances)
    return others if fewer else total
