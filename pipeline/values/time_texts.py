"""Times in other formats: defined by a pattern, in milliseconds, or without a time zone.

Columns of times are int64 microseconds since 1970-01-01T00:00Z, as in `times`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.times import iso_time, microseconds, parse_time, shown

_MOST_KNOWN: Final = 1 << 16  # number of cached texts: days and hours recur
_FIRST, _LAST = microseconds(datetime.min), microseconds(datetime.max)
# The exponent is bounded: 1e999999999 would otherwise be computed to the last digit.
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?")
# As Unix seconds, such numbers are in the year 1970.
_DATE_OF_DIGITS = re.compile(r"(19|20|21)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")


@dataclass(frozen=True, slots=True)
class Times:
    """A column of times with its problems.

    Attributes:
        moments: Microseconds since 1970, int64, shape (texts,); 0 for problems.
        problems: Problem descriptions by index.
        zoneless: Number of texts without a time zone, which are parsed in the reader's zone.
        unclear: Number of zoneless texts that occur twice or never because of a clock change.
    """

    moments: NDArray[np.int64]
    problems: dict[int, str]
    zoneless: int = 0
    unclear: int = 0


@dataclass(frozen=True, slots=True)
class TimeReader:
    """Parser of times in one format.

    >>> from zoneinfo import ZoneInfo
    >>> german = TimeReader("%d.%m.%Y %H:%M", ZoneInfo("Europe/Berlin"))
    >>> times = german.parse(["01.01.1970 01:00", "1970-01-01"])
    >>> times.moments.tolist(), times.problems, times.zoneless
    ([0, 0], {1: "time '1970-01-01' does not match %d.%m.%Y %H:%M"}, 1)

    Attributes:
        pattern: Pattern of `datetime.strptime`; or "iso", "unix" for seconds, "unix_ms" for
            milliseconds; None for ISO 8601 or Unix seconds.
        zone: Zone for times that state no zone.
    """

    pattern: str | None = None
    zone: tzinfo = UTC
    _known: dict[str, tuple[int, bool, bool]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def parse(self, texts: Sequence[str]) -> Times:
        known, problems = self._known, {}
        moments, zoneless, unclear = [], 0, 0
        for index, text in enumerate(texts):
            found = known.get(text)
            if found is None:
                try:
                    found = self._read(text.strip())
                except ValueError as error:
                    problems[index] = str(error)
                    moments.append(0)
                    continue
                if len(known) < _MOST_KNOWN:
                    known[text] = found
            moment, without_zone, is_unclear = found
            moments.append(moment)
            zoneless += without_zone
            unclear += is_unclear
        return Times(np.array(moments, np.int64), problems, zoneless, unclear)

    def _read(self, text: str) -> tuple[int, bool, bool]:
        """Return a text's time, whether it lacks a time zone, and whether it is ambiguous."""
        is_number = _NUMBER.fullmatch(text) is not None and text[4:5] != "-"
        match self.pattern:
            case None:
                if _DATE_OF_DIGITS.fullmatch(text):
                    raise ValueError(
                        f"time {shown(text)} is ambiguous: a date or unix seconds. Set the time "
                        "format to %Y%m%d or unix"
                    )
                stated = None if is_number else _stated(text)
                if stated is None or stated.tzinfo is not None:
                    return parse_time(text), False, False
                return self._placed(stated)
            case "iso":
                stated = _stated(text)
                if stated is None:
                    raise ValueError(
                        f"time {shown(text)} is not ISO 8601; expected one like 2024-05-01T12:00Z"
                    )
                return self._placed(stated)
            case "unix":
                if not is_number:
                    raise ValueError(f"time {shown(text)} is not unix seconds")
                return parse_time(text), False, False
            case "unix_ms":
                if not is_number:
                    raise ValueError(f"time {shown(text)} is not unix milliseconds")
                return _milliseconds(text), False, False
            case pattern:
                try:
                    stated = datetime.strptime(text, pattern)
                except ValueError:
                    raise ValueError(f"time {shown(text)} does not match {pattern}") from None
                return self._placed(stated)

    def _placed(self, moment: datetime) -> tuple[int, bool, bool]:
        if moment.tzinfo is not None or self.zone is UTC:
            return microseconds(moment), moment.tzinfo is None, False
        try:
            first = microseconds(moment.replace(tzinfo=self.zone))
            second = microseconds(moment.replace(tzinfo=self.zone, fold=1))
        except OverflowError:
            raise ValueError(f"time {moment} is outside the years 1 to 9999") from None
        return first, True, first != second


def _stated(text: str) -> datetime | None:
    try:
        return iso_time(text)
    except ValueError:
        return None


def _milliseconds(text: str) -> int:
    moment = int(text) * 1000 if text.isdecimal() else math.floor(Fraction(text) * 1000)
    if not _FIRST <= moment <= _LAST:
        raise ValueError(
            f"time {shown(text)} is outside the years 1 to 9999; unix_ms expects milliseconds"
        )
    return moment
