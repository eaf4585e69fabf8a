"""Mapping of times to epochs.

A column of times is int64 microseconds since 1970-01-01T00:00Z. The mapping uses integer
arithmetic, so no row is rounded across a boundary.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.durations import Duration

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(milliseconds: int) -> str:
    """Format milliseconds since 1970 as ISO 8601.

    >>> iso(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return iso_moment(moment_of(milliseconds), "milliseconds")


def moment_of(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def iso_moment(moment: datetime, timespec: str = "auto") -> str:
    """Format a time that has a zone as ISO 8601, without fractions of a second if they are 0.

    >>> iso_moment(datetime(2024, 6, 3, tzinfo=UTC))
    '2024-06-03T00:00:00Z'
    """
    return moment.isoformat(timespec=timespec).replace("+00:00", "Z")


_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_ORIGIN = datetime(1970, 1, 1)
_FIRST = (datetime.min - _NAIVE_ORIGIN) // _MICROSECOND
_LAST = (datetime.max - _NAIVE_ORIGIN) // _MICROSECOND

_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)?"
# Times that clocks do not show, such as 24:00: format, replacement, and offset from the
# replacement.
_BEYOND_CLOCKS = (
    (re.compile(rf"([\d-]+[T ])24((?::?00(?::?00(?:\.0+)?)?)?{_ZONE})"), r"\g<1>00\g<2>", _DAY),
    (
        re.compile(rf"([\d-]+[T ]23:?59:?)60(?:\.\d+)?({_ZONE})"),
        r"\g<1>59\g<2>",
        timedelta(seconds=1),
    ),
)
# The exponent is bounded: 1e999999999 would otherwise be computed to the last digit.
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?")


def shown(text: str) -> str:
    """Quote, escape and shorten untrusted text for a message."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970-01-01T00:00Z; a time without a zone is taken as UTC."""
    return (moment - (_NAIVE_ORIGIN if moment.tzinfo is None else _ORIGIN)) // _MICROSECOND


def parse_time(text: str) -> int:
    """Parse an ISO 8601 or Unix time to microseconds since 1970-01-01T00:00Z.

    A plain number is Unix seconds; anything else is ISO 8601, in UTC if it has no zone. Digits
    beyond microseconds are truncated. Raises `ValueError` for other texts, and for years outside 1
    to 9999.

    >>> parse_time("1970-01-01T00:00:01"), parse_time("1970-01-01T02:00+02:00"), parse_time("0.5")
    (1000000, 0, 500000)
    """
    text = text.strip()
    number = None if text[4:5] == "-" else _unix_time(text)
    if number is None:
        try:
            number = microseconds(iso_time(text))
        except ValueError:
            raise ValueError(
                f"time {shown(text)} is invalid; expected ISO 8601 (2024-05-01T12:00Z) or unix "
                "seconds"
            ) from None
    if not _FIRST <= number <= _LAST:
        raise ValueError(
            f"time {shown(text)} is outside the years 1 to 9999; expected unix seconds, not "
            "milliseconds"
        )
    return number


def iso_time(text: str) -> datetime:
    """Parse ISO 8601, including 24:00 for the end of a day and :60 for a leap second.

    >>> str(iso_time("2024-05-01T24:00")), str(iso_time("2016-12-31T23:59:60Z"))
    ('2024-05-02 00:00:00', '2017-01-01 00:00:00+00:00')
    """
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        for form, instead, later in _BEYOND_CLOCKS:
            if form.fullmatch(text):
                try:
                    return datetime.fromisoformat(form.sub(instead, text)) + later
                except OverflowError:
                    break
        raise


def _unix_time(text: str) -> int | None:
    whole, _, fraction = text.partition(".")
    if text.isascii() and whole.isdecimal() and len(whole) <= 20:
        if not fraction:
            return int(whole) * _SECOND
        if fraction.isdecimal():
            return int(whole) * _SECOND + int(fraction[:6].ljust(6, "0"))
    return math.floor(Fraction(text) * _SECOND) if _NUMBER.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class EpochCalendar:
    """Mapping of times to a job's epochs: epoch 1 is [start, start + length).

    >>> weeks = EpochCalendar(datetime(2024, 1, 1, tzinfo=UTC), Duration(exact=timedelta(days=7)))
    >>> days = [parse_time(day) for day in ("2023-12-31", "2024-01-07", "2024-01-08")]
    >>> weeks.epochs_of(np.array(days)).tolist()
    [0, 1, 2]

    With a `zone`, days, weeks, months and years are those of the zone's clocks: a day can have 23
    or 25 hours. Shorter units have their exact length. Without a zone, days are those of UTC.

    >>> days = EpochCalendar(datetime(2024, 3, 30, 23, tzinfo=UTC), Duration(exact=timedelta(1)),
    ...                      ZoneInfo("Europe/Berlin"))
    >>> [str(days.start_of(epoch)) for epoch in (1, 2)]
    ['2024-03-30 23:00:00+00:00', '2024-03-31 22:00:00+00:00']
    """

    start: datetime
    length: Duration
    zone: ZoneInfo | None = None

    def start_of(self, epoch: int) -> datetime:
        """Return the start of an epoch in UTC, which is the end of the previous epoch.

        If clocks skip the epoch's time of day, the epoch starts later by the length of the gap. If
        clocks show that time twice, the epoch starts at its first occurrence, unless `start` is the
        second occurrence of a repeated time. Raises `OverflowError` outside the years 1 to 9999.
        """
        days, rest = divmod(self.length.exact, _DAY)
        if self.zone is None or not (days or self.length.months):
            return self.length.epoch_start(self.start, epoch)
        clocks = self.start.astimezone(self.zone)
        whole = Duration(self.length.months, days * _DAY)
        wall = whole.epoch_start(clocks.replace(tzinfo=UTC, fold=0), epoch)
        # If clocks show the time twice, use the second one if the start is a second one. A skipped
        # time is never made earlier, as fold=1 alone would.
        moment = max(
            wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in {0, clocks.fold}
        )
        return moment + (epoch - 1) * rest

    def epoch_of(self, moment: datetime) -> int:
        if self.zone is None:
            return self.length.epoch_of(self.start, moment)
        return self.length.epoch_by(self.start, moment, self.start_of)

    def local(self, moment: datetime) -> datetime:
        return moment.astimezone(self.zone or UTC)

    def shown(self, epoch: int) -> str:
        """Format the start of an epoch in the zone, as briefly as the length permits.

        >>> weeks = EpochCalendar(datetime(2024, 1, 1, tzinfo=UTC), Duration(exact=timedelta(7)))
        >>> hours = EpochCalendar(weeks.start, Duration(exact=timedelta(hours=1)))
        >>> weeks.shown(2), hours.shown(2)
        ('2024-01-08', '2024-01-01 01:00')
        """
        begins = self.local(self.start_of(epoch))
        first = self.local(self.start)
        if not self.length.exact % _DAY and first.time() == time():
            return f"{begins:%Y-%m-%d}"
        if self.length.exact % _MINUTE or first.second:
            return f"{begins:%Y-%m-%d %H:%M:%S}"
        return f"{begins:%Y-%m-%d %H:%M}"

    def epochs_of(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self.length.months and (self.zone is None or self.length.exact < _DAY):
            length = self.length.exact // _MICROSECOND
            return np.asarray((moments - microseconds(self.start)) // length + 1, dtype=np.int64)
        if not len(moments):
            return np.zeros(0, dtype=np.int64)
        first, last = (
            self.epoch_of(_ORIGIN + int(moment) * _MICROSECOND)
            for moment in (moments.min(), moments.max())
        )
        if last - first > len(moments):
            # A time in the year 9999 must not require the starts of all epochs until then.
            each = [self.epoch_of(_ORIGIN + moment * _MICROSECOND) for moment in moments.tolist()]
            return np.array(each, dtype=np.int64)
        boundaries = [microseconds(self.start_of(epoch)) for epoch in range(first + 1, last + 1)]
        passed = np.searchsorted(np.array(boundaries, dtype=np.int64), moments, side="right")
        return np.asarray(first + passed, dtype=np.int64)
