"""Propose epochs that cover the rows of an input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.planning.input_profile import InputProfile
from dpstream.pipeline.values.durations import Duration, parse_duration
from dpstream.pipeline.values.times import EpochCalendar, moment_of

_DAY = 86_400_000_000
_MOST_WEEKS: Final = 104
_FEWEST_WEEKS: Final = 4
_FEWEST_DAYS: Final = 4
_LONGEST_GAP: Final = 60  # days without a row, beyond which the few rows outside are mistakes
_FEW: Final = 0.001
_WORDS: Final[Mapping[str, tuple[str, str, tuple[tuple[str, int], ...]]]] = {
    "PT1H": ("hour", "hours", (("hourly", 1), ("daily", 24))),
    "P1D": ("day", "days", (("dau", 1), ("wau", 7))),
    "P7D": ("week", "weeks", (("wau", 1), ("mau", 4))),
    "P1M": ("month", "months", (("mau", 1),)),
}
"""Name, plural, and measures of activity with their windows, by length of an epoch."""


@dataclass(frozen=True, slots=True)
class Period:
    """The epochs of an input.

    Attributes:
        outside: Number of rows outside these epochs; their times are probably mistakes.
        calendar: Calendar; None if rows have epochs.
    """

    count: int
    epochs: NDArray[np.int64] = field(repr=False)
    outside: int = 0
    calendar: EpochCalendar | None = None

    @property
    def words(self) -> tuple[str, str, tuple[tuple[str, int], ...]]:
        length = None if self.calendar is None else str(self.calendar.length)
        return _WORDS.get(length or "", ("epoch", "epochs", (("active", 1),)))


def period_of(profile: InputProfile, length: Duration | None = None) -> Period:
    """Return the epochs that cover an input, of a given length or one that suits it."""
    moments = profile.moments
    if not profile.has_times:
        return Period(max(1, int(moments.max())), moments)
    zone = profile.input_format.zone
    first, last = _span(moments)
    if length is None:
        length = parse_duration(_suiting(last - first))
    start = _start(first, length, zone)
    calendar = EpochCalendar(start, length, zone if isinstance(zone, ZoneInfo) else None)
    epochs = calendar.epochs_of(np.clip(moments, first - _DAY * 400, last + _DAY * 400))
    count = calendar.epoch_of(moment_of(last // 1_000))
    outside = int(np.count_nonzero((moments < first) | (moments > last)))
    return Period(count, epochs, outside, calendar)


def _span(moments: NDArray[np.int64]) -> tuple[int, int]:
    """Return the first and last moment, ignoring a few rows before or after a long gap."""
    days, counts = np.unique(moments // _DAY, return_counts=True)
    below, total = np.cumsum(counts), int(counts.sum())
    middle = int(np.searchsorted(below, total / 2))
    gaps = np.flatnonzero(np.diff(days) > _LONGEST_GAP)
    low, high = 0, len(days) - 1
    for gap in gaps.tolist():
        if gap < middle and below[gap] <= _FEW * total:
            low = gap + 1
        elif gap >= middle and total - below[gap] <= _FEW * total:
            high = min(high, gap)
    within = moments[(moments >= days[low] * _DAY) & (moments < (days[high] + 1) * _DAY)]
    return int(within.min()), int(within.max())


def _suiting(span: int) -> str:
    days = span / _DAY
    if days > 7 * _MOST_WEEKS:
        return "P1M"
    if days > 7 * (_FEWEST_WEEKS - 1):
        return "P7D"
    return "P1D" if days > _FEWEST_DAYS - 1 else "PT1H"


def _start(first: int, length: Duration, zone: Any) -> datetime:
    """Return the start of the epoch of a moment: of its hour, day, Monday, month or year."""
    moment = datetime.fromtimestamp(first / 1_000_000, zone or UTC)
    if not length.months and length.exact < timedelta(days=1):
        return moment.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
    day = datetime(moment.year, moment.month, moment.day)
    if length.months:
        day = day.replace(day=1, month=1 if length.months % 12 == 0 else day.month)
    elif length.exact.days % 7 == 0:
        day -= timedelta(days=day.weekday())
    return day.replace(tzinfo=zone or UTC).astimezone(UTC)
