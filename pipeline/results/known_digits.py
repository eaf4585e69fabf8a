"""Numbers of people with no more digits than are known of them, and never fewer than none."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownCount:
    """A number of people and its interval, as far as both can be believed.

    Attributes:
        value: rounded to the second digit of half the interval.
        low: rounded down, and never below 0.
        high: rounded up, and no more than all there are.
        share: the value in percent of all there are, in words; empty where that is not known.
    """

    value: int
    low: int
    high: int
    share: str = ""

    @property
    def may_be_none(self) -> bool:
        """Whether nobody at all lies in the interval."""
        return self.low <= 0

    @property
    def words(self) -> tuple[str, str]:
        """How the number is introduced, and the number.

        >>> known_count(7_264, 5_474, 9_054, 28_785).words
        ('About', '7,300')
        >>> known_count(-150, -1_900, 1_640).words
        ('Fewer than', '1,700')
        """
        if self.may_be_none:
            return "Fewer than", f"{self.high:,}"
        return "About", f"{self.value:,}"


def step_of(low: float, high: float) -> int:
    """Of what numbers with this interval are multiples: of the second digit of half of it.

    >>> step_of(5_474, 9_054), step_of(0, 20), step_of(40, 40.5)
    (100, 1, 1)
    """
    half = (high - low) / 2
    return 1 if half < 100 else int(10 ** (math.floor(math.log10(half)) - 1))


def known_count(value: float, low: float, high: float, people: int | None = None) -> KnownCount:
    """What is known of a number of people.

    Rounding goes outwards, so that the interval says no more than it did; one that holds numbers
    below 0 begins at 0. An interval below 0 throughout is one of the 5 % that miss: it becomes that
    from 0 to the smallest number that can be said.

    >>> known_count(7_264, 5_474, 9_054, 28_785)
    KnownCount(value=7300, low=5400, high=9100, share='25 %')

    Args:
        value: the estimate.
        low: of its interval.
        high: of its interval.
        people: all there are, where that is public.
    """
    step = step_of(low, high)
    most = math.inf if not people or value > people else people
    upper = max(min(math.ceil(high / step) * step, most), step)
    lower = max(math.floor(low / step) * step, 0)
    middle = min(max(round(value / step) * step, 0), upper)
    share = "" if most == math.inf or not people else percent(value / people, (high - low) / people)
    return KnownCount(int(middle), int(lower), int(upper), share)


def percent(share: float, width: float = 1.0) -> str:
    """A share in percent, to the digit that half an interval of such a width allows, at most two.

    >>> percent(0.2524, 0.12), percent(0.00031, 0.0002), percent(0.5)
    ('25 %', '0.03 %', '50 %')
    """
    half = 50 * width
    digits = 0 if half >= 0.5 else 1 if half >= 0.05 else 2
    return f"{max(100 * share, 0):.{digits}f} %"
