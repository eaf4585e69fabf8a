"""Current epoch by the calendar of a statement, in milliseconds since 1970.

The arithmetic is that of job files: epoch e starts at start + (e - 1) lengths, always counted from
the start. In months too short for the start's day, it starts on their last day.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import date
from typing import Final

_DAY: Final = 86_400_000
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MEAN_MONTH: Final = 2_629_746_000
"""Mean month of the Gregorian calendar, 30.436875 days, in milliseconds."""


@dataclass(frozen=True, slots=True)
class EpochClock:
    """Start times of epochs, and the epochs that a deployment has.

    Attributes:
        start: Start of epoch 1.
        months: Calendar months (UTC) of an epoch's length.
        milliseconds: Added to the months of an epoch's length.
        count: Epochs of a horizon.
        first, last: First and last epoch of the deployment; `last` None: no end.
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
            raise ValueError("epochs are not whole numbers")
        if min(self.months, self.milliseconds) < 0 or not self.months + self.milliseconds:
            raise ValueError("the epoch length is zero or negative")
        if self.last is not None and (type(self.last) is not int or self.last < self.first):
            raise ValueError("the last epoch is before the first")
        self.begins(1)

    def begins(self, epoch: int) -> int:
        """Return the start of an epoch and end of the previous one, within the years 1 to 9999."""
        days, time = divmod(self.start, _DAY)
        if not 1 <= days + _EPOCH_DAY <= date.max.toordinal():
            raise ValueError("epochs start outside the years 1 to 9999")
        first = date.fromordinal(days + _EPOCH_DAY)
        year, month = divmod(first.year * 12 + first.month - 1 + (epoch - 1) * self.months, 12)
        if not 1 <= year <= 9999:
            raise ValueError(f"epoch {epoch} starts outside the years 1 to 9999")
        day = min(first.day, monthrange(year, month + 1)[1])
        since = date(year, month + 1, day).toordinal() - _EPOCH_DAY
        return since * _DAY + time + (epoch - 1) * self.milliseconds

    def epoch_at(self, instant: int) -> int:
        """Return the epoch of an instant: at least 1 from the start on, at most 0 before it.

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
        """Return an epoch's number within its horizon, from 1, as used by randomizers."""
        return (epoch - 1) % self.count + 1

    def has(self, epoch: int) -> bool:
        """Return whether the deployment includes an epoch."""
        return self.first <= epoch and (self.last is None or epoch <= self.last)

    def _begins_after(self, instant: int, epoch: int) -> bool:
        try:
            return self.begins(epoch) > instant
        except ValueError:
            return epoch > 1
