"""Lower bounds on the number of changes users have made, from public reports alone.

Confidence intervals of `value_stream` and related protocols assume that users change at most k
times. Reports cannot show a violation: a device that has used up its changes reports like one whose
value no longer changes. But reports do show how much of the limit has been used. Two lower bounds,
each valid by itself, are computed from:

* Counts. If a count moves by n users between two epochs, at least n users changed. A band contains
  the true counts of all epochs, except with probability `FALSE_ALARM` / 2. The shortest path within
  the band is that of a point that moves only when the edge of the band pushes it.
* Squares of symbols, in the notation of `value_stream`. Their mean exceeds that of noise by theta g
  u^2 / r^2. A change adds at most a / (1 - b) + a^2 / (1 - b^2) to the sum of a device's u^2 - 1/4
  over the following epochs. This detects changes that cancel in the counts. The sum of squares is
  tested at eight epochs per doubling of the epoch number.

Reference: Laurent and Massart, Annals of Statistics 28, 2000, Lemma 1 (bound on sums of squares).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

FALSE_ALARM = 1e-3
"""Maximum probability that a job ever overstates the average number of changes per user."""

_LOOKS_BITS = 3


class ChangeUse(NamedTuple):
    """Evidence of changes up to an epoch.

    Attributes:
        settled: Count, in users, at the end of the shortest path within the band.
        moved: Length of the path, in changes per user.
        squares: Sum over epochs of the devices' mean u^2 - 1/4, including noise.
        spread: Sum over epochs of 1 / reports.
        fewest: Smallest number of reports at any epoch; 0 before the first.
        changes: Largest lower bound so far on the average number of changes per user.
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
        width = band(last_epoch) * deviation
        settled = min(max(self.settled, value - width), value + width)
        moved = self.moved + abs(settled - self.settled) / population
        return self._replace(settled=settled, moved=moved, changes=max(self.changes, moved))

    def after_squares(
        self, excess: float, reports: int, epoch: int, last_epoch: int, unit: float, change: float
    ) -> ChangeUse:
        """Update with the squares of an epoch's symbols.

        `excess` is the mean square minus 1. It grows by `unit` = theta g / r^2 per unit of u^2. One
        change adds at most `change` to the sum of u^2 - 1/4.
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
    """Return the half-width, in standard errors, of a band for all epochs of a horizon."""
    return NormalDist().inv_cdf(1 - FALSE_ALARM / 4 / last_epoch)


def looks(last_epoch: int) -> int:
    """Return an upper bound on the number of epochs in a horizon at which squares are tested.

    >>> looks(1024)
    88
    """
    return last_epoch.bit_length() << _LOOKS_BITS


def _is_looked_at(epoch: int) -> bool:
    return epoch % (1 << max(0, epoch.bit_length() - 1 - _LOOKS_BITS)) == 0
