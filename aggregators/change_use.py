"""Lower bounds on the changes that people have made, from public reports alone.

Intervals of `value_stream` and its kin hold as long as people change at most k times. Whether they
do cannot be read from the reports: once changes are used up, letters have the law of a quieter
population that keeps within its limit. What can be read is how much of the limit has been used
until then, in two ways, of which each alone is a lower bound:

* The counts themselves. If a count moves by n users between two epochs, at least n users changed.
  The least movement that fits in a band that holds all true counts at once, with a chance
  of all but `FALSE_ALARM` / 2, is that of a point that only moves when the band pushes it.
* The squares of letters, of `value_stream`. Their mean exceeds that of noise by theta g u^2 / r^2,
  and every change adds at most a / (1 - b) + a^2 / (1 - b^2) to the sum of a device's u^2 - 1/4
  over the epochs that follow it. This sees changes that cancel in the counts. The sum of squares is
  bounded by Lemma 1 of Laurent and Massart (Annals of Statistics 28, 2000), at eight epochs in
  every doubling of their number.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

FALSE_ALARM = 1e-3
"""The chance that a job ever claims more changes than people have made on average."""

_LOOKS_BITS = 3


class ChangeUse(NamedTuple):
    """Evidence of changes after an epoch.

    Attributes:
        settled: the count that fits all epochs so far with the least movement, in users.
        moved: that movement, in changes per person.
        squares: sum over epochs of the mean of u^2 - 1/4 over devices, with its noise.
        spread: sum over epochs of 1 / reports.
        fewest: reports of the epoch with the fewest; 0 before the first.
        changes: the most changes per person, on average, that have been shown so far.
    """

    settled: float = 0.0
    moved: float = 0.0
    squares: float = 0.0
    spread: float = 0.0
    fewest: int = 0
    changes: float = 0.0

    def after_count(
        self, value: float, deviation: float, population: int, last_epoch: int
    ) -> ChangeUse:
        """Take in the estimate of an epoch.

        Args:
            value: in users.
            deviation: its standard deviation.
            population: devices enrolled, at least one.
            last_epoch: epochs of a horizon.
        """
        width = band(last_epoch) * deviation
        settled = min(max(self.settled, value - width), value + width)
        moved = self.moved + abs(settled - self.settled) / population
        return self._replace(settled=settled, moved=moved, changes=max(self.changes, moved))

    def after_squares(
        self, excess: float, reports: int, epoch: int, last_epoch: int, unit: float, change: float
    ) -> ChangeUse:
        """Take in the squares of the letters of an epoch.

        Args:
            excess: their mean, less 1.
            reports: how many letters there are, at least one.
            epoch: of the horizon.
            last_epoch: epochs of a horizon.
            unit: theta g / r^2, by which the mean exceeds 1 for each unit of u^2.
            change: the most that one change adds to the sum of u^2 - 1/4.
        """
        squares = self.squares + excess / unit - 0.25
        spread = self.spread + 1 / reports
        fewest = min(self.fewest or reports, reports)
        changes = self.changes
        if _is_looked_at(epoch):
            nats = math.log(2 * looks(last_epoch) / FALSE_ALARM)
            noise = 2 * (math.sqrt(spread * nats) + nats / fewest) / unit
            changes = max(changes, (squares - noise) / change)
        return self._replace(squares=squares, spread=spread, fewest=fewest, changes=changes)


@lru_cache
def band(last_epoch: int) -> float:
    """Return how many standard deviations hold all errors of a horizon at once."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / 4 / last_epoch)


def looks(last_epoch: int) -> int:
    """Return at how many epochs of a horizon the squares are looked at, or a few more.

    >>> looks(1024)
    88
    """
    return last_epoch.bit_length() << _LOOKS_BITS


def _is_looked_at(epoch: int) -> bool:
    return epoch % (1 << max(0, epoch.bit_length() - 1 - _LOOKS_BITS)) == 0
