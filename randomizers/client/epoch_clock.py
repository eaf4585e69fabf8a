"""Find the current epoch in a statement's calendar, from milliseconds since 1970.

The arithmetic is that of job files: epoch e starts e - 1 epoch lengths after `start`. In a month
without the day of `start`, an epoch starts on the last day of the month.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date
from typing import Final

_DAY: Final = 86_400_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MEAN_MONTH: Final = 2_629_746_000


@dataclass(frozen=True, slots=True)
class EpochClock:
    """Start times of epochs, and the range of epochs of a deployment.

    Attributes:
        start: Start of epoch 1, in milliseconds since 1970.
        months: Number of calendar months (UTC) in an epoch's length.
        milliseconds: Milliseconds in an epoch's length, in addition to its months.
        count: Number of epochs in a horizon.
        first, last: First and last epoch of the deployment; `last` is None if there is no end.
    """

    start: int
    months: int
    milliseconds: int
    count: int
    first: int
    last: int | None

    def __post_init__(self) -> None:
        numbers = (self.start, self.months, self.milliseconds, self.count, self.first)
        if not all(type(each) is int for each in numbers) or min(self.count, self.first) < 1:
            raise ValueError("epochs must be integers, with 'count' and 'first' of at least 1")
        if min(self.months, self.milliseconds) < 0 or not self.months + self.milliseconds:
            raise ValueError("the epoch length is zero or negative; expected a positive length")
        if self.last is not None and (type(self.last) is not int or self.last < self.first):
            raise ValueError(f"the last epoch is {self.last!r}; expected at least {self.first}")
        self.begins(1)

    def begins(self, epoch: int) -> int:
        """Return the start of an epoch; raise `ValueError` outside the years 1 to 9999."""
        days, time = divmod(self.start, _DAY)
        if not 1 <= days + _EPOCH_DAY <= date.max.toordinal():
            raise ValueError("epoch 1 starts outside the years 1 to 9999")
        first = date.fromordinal(days + _EPOCH_DAY)
        year, month = divmod(first.year * 12 + first.month - 1 + (epoch - 1) * self.months, 12)
        if not 1 <= year <= 9999:
            raise ValueError(f"epoch {epoch} starts outside the years 1 to 9999")
        day = min(first.day, monthrange(year, month + 1)[1])
        since = date(year, month + 1, day).toordinal() - _EPOCH_DAY
        return since * _DAY + time + (epoch - 1) * self.milliseconds

    def epoch_at(self, instant: int) -> int:
        """Return the epoch that contains an instant, or a number below 1 before `start`.

        >>> EpochClock(0, 0, 86_400_000, 30, 1, None).epoch_at(2 * 86_400_000)
        3
        """
        mean = self.months * _MEAN_MONTH + self.milliseconds
        epoch = (instant - self.start) // mean + 1
        while self._begins_after(instant, epoch):
            epoch -= 1
        while not self._begins_after(instant, epoch + 1):
            epoch += 1
        return epoch

    def horizon(self, epoch: int) -> int:
        """Return the horizon of an epoch, numbered from 0."""
        return (epoch - 1) // self.count

    def local(self, epoch: int) -> int:
        """Return an epoch's number within its horizon, starting at 1, as used by randomizers."""
        return (epoch - 1) % self.count + 1

    def has(self, epoch: int) -> bool:
        """Return whether the deployment includes an epoch."""
        return self.first <= epoch and (self.last is None or epoch <= self.last)

    def _begins_after(self, instant: int, epoch: int) -> bool:
        try:
            return self.begins(epoch) > instant
        except ValueError:
            return epoch > 1
