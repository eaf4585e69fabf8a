"""Round user counts to their significant digits, and clip them to the population."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownCount:
    """User count with its interval, rounded and clipped to possible numbers.

    Attributes:
        value: Estimate, rounded to the second digit of half the interval's width.
        low: Lower end of the interval, rounded down, at least 0.
        high: Upper end of the interval, rounded up, at most the population.
        share: Percentage of the population, as text; empty if the population is unknown.
        may_be_all: True if `high` is the population.
    """

    value: int
    low: int
    high: int
    share: str = ""
    may_be_all: bool = False

    @property
    def may_be_none(self) -> bool:
        return self.low <= 0

    @property
    def words(self) -> tuple[str, str]:
        """Qualifier, such as "About", and the number that it qualifies.

        >>> known_count(7_264, 5_474, 9_054, 28_785).words
        ('About', '7,300')
        >>> known_count(-150, -1_900, 1_640).words
        ('Fewer than', '1,700')
        """
        if self.may_be_none:
            return "At most" if self.may_be_all else "Fewer than", f"{self.high:,}"
        return "About", f"{self.value:,}"


def step_of(low: float, high: float) -> int:
    """Return the rounding step for an interval: the second digit of half its width.

    >>> step_of(5_474, 9_054), step_of(0, 20), step_of(40, 40.5)
    (100, 1, 1)
    """
    half = (high - low) / 2
    return 1 if half < 100 else int(10 ** (math.floor(math.log10(half)) - 1))


def mean_digits(low: float, high: float) -> int:
    """Return the decimals that are known of a mean: to the second digit of half its interval.

    >>> mean_digits(5.5, 9.1), mean_digits(0.283, 0.315), mean_digits(4_200, 9_100)
    (1, 3, 0)
    """
    half = (high - low) / 2
    return max(0, 1 - math.floor(math.log10(half))) if half > 0 else 2


def known_count(value: float, low: float, high: float, people: int | None = None) -> KnownCount:
    """Round a user count; `people` is the population, if public.

    The interval is rounded outward, so that it does not claim more than the exact one. All numbers
    are clipped to the range from 0 to the population. An interval entirely outside this range is
    replaced by the outermost rounding step within the range.

    >>> known_count(7_264, 5_474, 9_054, 28_785)
    KnownCount(value=7300, low=5400, high=9100, share='25 %', may_be_all=False)
    >>> known_count(330, 198, 462, 202)
    KnownCount(value=202, low=190, high=202, share='100 %', may_be_all=True)
    """
    # Rounded to thousandths as for the page, so that its script computes the same numbers.
    value, low, high = round(value, 3), round(low, 3), round(high, 3)
    step = step_of(low, high)
    most = people or math.inf
    upper = min(max(math.ceil(high / step) * step, step), most)
    lower = max(min(math.floor(low / step) * step, most - step), 0)
    middle = min(max(math.floor(value / step + 0.5) * step, 0), upper)
    share = ""
    if people:
        share = percent(min(value / people, 1.0), min((high - low) / people, 1.0))
    return KnownCount(int(middle), int(lower), int(upper), share, upper == most)


def percent(share: float, width: float = 1.0) -> str:
    """Format a percentage with at most two digits, as half the interval's width allows.

    >>> percent(0.2524, 0.12), percent(0.00031, 0.0002), percent(0.5)
    ('25 %', '0.03 %', '50 %')
    """
    half = 50 * width
    digits = 0 if half >= 0.5 else 1 if half >= 0.05 else 2
    return f"{max(100 * share, 0):.{digits}f} %"
