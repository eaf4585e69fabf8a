"""Exact durations, and calendar months and years.

A day is 24 hours and a week is 7 days, as in UTC, so only the lengths of months and years vary.
(`times` has the days of a time zone.) Epoch e of a job starts at `start + (e - 1) * length`. The
start of an epoch is never counted from the previous epoch: after January 31st, months start on
February 28th and then on March 31st.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

FORMS = (
    "ISO 8601 (P7D, PT1H, P1M) or a whole number with a unit (ms, s, min, h, d, w, or in words, "
    "up to years), such as 60 s, 7d, 24 hours or 1 month"
)

_MICROSECONDS = {
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
_WORDS = {
    "millisecond": "ms",
    "second": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
    "week": "w",
}
_MONTHS = {"month": 1, "year": 12}
_ISO = re.compile(
    r"P(?=.)(?:(?P<years>\d{1,15})Y)?(?:(?P<months>\d{1,15})M)?(?:(?P<w>\d{1,15})W)?(?:(?P<d>\d{1,15})D)?"
    r"(?:T(?=.)(?:(?P<h>\d{1,15})H)?(?:(?P<min>\d{1,15})M)?(?:(?P<s>\d{1,15}(?:[.,]\d{1,6})?)S)?)?",
    re.ASCII,
)
_SHORT = re.compile(r"(?P<number>\d{1,15})\s*(?P<unit>[a-z]+)", re.ASCII)
_LONGEST = timedelta(days=366 * 1000)
_MEAN_MONTH = timedelta(days=30.436875)


@dataclass(frozen=True, slots=True)
class Duration:
    """A positive duration of at most 1000 years: calendar `months`, then an `exact` remainder.

    >>> str(parse_duration("7d")), str(parse_duration("PT90M")), str(parse_duration("P1Y6M"))
    ('P7D', 'PT1H30M', 'P1Y6M')
    """

    months: int = 0
    exact: timedelta = timedelta()

    def __post_init__(self) -> None:
        if not self.months and not self.exact:
            raise ValueError("a duration must be longer than 0")
        if not (0 <= self.months <= 12_000 and timedelta() <= self.exact <= _LONGEST):
            raise ValueError("a duration must be above 0 and at most 1000 years")

    def __str__(self) -> str:
        years, months = divmod(self.months, 12)
        minutes, seconds = divmod(self.exact.seconds, 60)
        hours, minutes = divmod(minutes, 60)
        fraction = f".{self.exact.microseconds:06d}".rstrip("0") if self.exact.microseconds else ""
        date = [(years, "Y"), (months, "M"), (self.exact.days, "D")]
        time = "".join(f"{n}{unit}" for n, unit in [(hours, "H"), (minutes, "M")] if n)
        time += f"{seconds}{fraction}S" if seconds or fraction else ""
        return "P" + "".join(f"{n}{unit}" for n, unit in date if n) + (f"T{time}" if time else "")

    def in_words(self) -> str:
        """Format as in a job file, in the largest unit that divides the duration.

        >>> [parse_duration(text).in_words() for text in ("PT20S", "PT90S", "P1W", "P1M")]
        ['20 s', '90 s', '7 d', 'P1M']
        """
        microseconds = self.exact // timedelta(microseconds=1)
        for unit in ("d", "h", "min", "s", "ms"):
            count, rest = divmod(microseconds, _MICROSECONDS[unit])
            if not self.months and not rest:
                return f"{count} {unit}"
        return str(self)

    def any_period(self) -> str:
        """Describe all periods of this length.

        >>> [parse_duration(text).any_period() for text in ("P1Y", "P6M", "P2W", "PT36H")]
        ['any year', 'any 6 months', 'any 14 days', 'any 36 h']
        """
        years, months = divmod(self.months, 12)
        day = timedelta(days=1)
        for count, rest, unit in (
            (years, months or self.exact, "year"),
            (self.months, self.exact, "month"),
            (self.exact.days, self.months or self.exact % day, "day"),
        ):
            if count and not rest:
                return f"any {unit}" if count == 1 else f"any {count} {unit}s"
        return f"any {self.in_words()}"

    def timedelta(self) -> timedelta:
        """Return the exact length; raise `ValueError` for calendar months and years."""
        if self.months:
            raise ValueError(
                f"{self} has no exact length because months and years vary; expected days"
            )
        return self.exact

    def most_in(self, span: Duration) -> int:
        """Return the maximum number of epochs that any period of length `span` can overlap.

        Rounds up: assumes the longest months and years for the period, the shortest ones for the
        epochs, and a change of up to three hours in a time zone's clocks.

        >>> year = parse_duration("P1Y")
        >>> [parse_duration(length).most_in(year) for length in ("P7D", "P1M", "P1Y", "P1D")]
        [54, 14, 3, 368]
        """
        if self.months and span.months and not self.exact and not span.exact:
            # Months that start on the 31st start earlier where a month is shorter.
            return -(-span.months // self.months) + 2
        longest = timedelta(days=span.months // 12 * 366 + span.months % 12 * 31, hours=3)
        shortest = timedelta(days=self.months // 12 * 365 + self.months % 12 * 28)
        return -(-(longest + span.exact) // (shortest + self.exact)) + 1

    def epoch_start(self, start: datetime, epoch: int) -> datetime:
        """Return the start of an epoch, which is the end of the previous epoch.

        `start` is the start of epoch 1, with a time zone; `epoch` can be 0 or negative. Raises
        `OverflowError` outside the years 1 to 9999.

        >>> month = parse_duration("P1M")
        >>> str(month.epoch_start(datetime(2024, 1, 31, tzinfo=UTC), 2))
        '2024-02-29 00:00:00+00:00'
        """
        start = start.astimezone(UTC)
        year, month = divmod(start.year * 12 + start.month - 1 + (epoch - 1) * self.months, 12)
        if not 1 <= year <= 9999:
            raise OverflowError(f"epoch {epoch} starts outside the years 1 to 9999")
        day = min(start.day, monthrange(year, month + 1)[1])
        return start.replace(year=year, month=month + 1, day=day) + (epoch - 1) * self.exact

    def epoch_of(self, start: datetime, instant: datetime) -> int:
        """Return the epoch that contains a time: 1 from `start` on, and at most 0 before `start`.

        >>> day = parse_duration("P1D")
        >>> day.epoch_of(datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 3, tzinfo=UTC))
        3
        """
        start, instant = start.astimezone(UTC), instant.astimezone(UTC)
        if not self.months:
            return (instant - start) // self.exact + 1
        return self.epoch_by(start, instant, lambda epoch: self.epoch_start(start, epoch))

    def epoch_by(
        self, start: datetime, instant: datetime, start_of: Callable[[int], datetime]
    ) -> int:
        """Return the last epoch that has started at `instant`, given the times from `start_of`.

        `start_of` raises `OverflowError` for epochs outside the years 1 to 9999.
        """

        def begins_later(epoch: int) -> bool:
            try:
                return start_of(epoch) > instant
            except OverflowError:
                return epoch > 1

        # The mean Gregorian month locates the epoch to within a few; the calendar determines it.
        epoch = (instant - start) // (self.months * _MEAN_MONTH + self.exact) + 1
        while begins_later(epoch):
            epoch -= 1
        while not begins_later(epoch + 1):
            epoch += 1
        return epoch


def parse_duration(text: str) -> Duration:
    """Parse ISO 8601, or an integer and a unit (``60 s``, ``7d``, ``24 hours``).

    >>> parse_duration("PT1H") == parse_duration("60 min")
    True
    """
    if short := _SHORT.fullmatch(text.strip()):
        number, unit = int(short["number"]), short["unit"]
        singular = unit.removesuffix("s")
        if singular in _MONTHS:
            return _duration(number * _MONTHS[singular], 0)
        unit = _WORDS.get(singular, unit)
        if unit in _MICROSECONDS:
            return _duration(0, number * _MICROSECONDS[unit])
    if iso := _ISO.fullmatch(text.strip()):
        parts = {name: part or "0" for name, part in iso.groupdict().items()}
        seconds, _, fraction = parts["s"].replace(",", ".").partition(".")
        microseconds = int(seconds) * _MICROSECONDS["s"] + int(fraction.ljust(6, "0"))
        microseconds += sum(
            int(parts[unit]) * _MICROSECONDS[unit] for unit in ("w", "d", "h", "min")
        )
        return _duration(int(parts["years"]) * 12 + int(parts["months"]), microseconds)
    raise ValueError(f"{text!r} is not a duration; expected {FORMS}")


def roughly(seconds: float) -> str:
    """Format a duration in one unit, for messages.

    >>> [roughly(seconds) for seconds in (75, 3_000, 7_199, 700_000)]
    ['75 s', '50 min', '2 h', '8.1 days']
    """
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        # A unit is used for values that round to at least two units.
        if seconds >= 1.96 * size:
            number = f"{seconds / size:,.0f}" if seconds >= 100 * size else f"{seconds / size:.2g}"
            return f"{number} {unit}"
    return f"{seconds:.0f} s"


def _duration(months: int, microseconds: int) -> Duration:
    # Numbers too large for a timedelta raise the same error as durations that are too long.
    capped = min(microseconds, 2 * _LONGEST // timedelta(microseconds=1))
    return Duration(months, timedelta(microseconds=capped))
