"""Interpret the texts in rows according to the input format, the job's values and its calendar."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat, folded
from dpstream.pipeline.values.numeric_values import number_of
from dpstream.pipeline.values.time_texts import TimeReader, Times
from dpstream.pipeline.values.times import EpochCalendar, shown
from dpstream.pipeline.values.value_domains import BOOLEAN, ValueDomain

_MOST_KNOWN: Final = 1 << 16  # number of cached texts; most occur repeatedly
_MOST_NAMED: Final = 8
_GROUPED: Final = {
    ",": re.compile(r"\s*[+-]?[0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?\s*"),
    ".": re.compile(r"\s*[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?\s*"),
}


@dataclass(frozen=True, slots=True)
class RowReader:
    """Parser of rows; raises `InputError` if the format does not fit the domain."""

    domain: ValueDomain = BOOLEAN
    calendar: EpochCalendar | None = None
    input_format: InputFormat = AS_IT_IS
    _times: TimeReader = field(init=False, repr=False, compare=False)
    _known: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        rejection = self.input_format.rejection(self.domain)
        if rejection is not None:
            raise InputError(f"input: {rejection}")
        object.__setattr__(
            self, "_times", TimeReader(self.input_format.time_format, self.named_zone)
        )

    @property
    def named_zone(self) -> tzinfo:
        """Time zone for times that state none: the format's zone, the calendar's zone, or UTC."""
        there = None if self.calendar is None else self.calendar.zone
        return self.input_format.zone or there or UTC

    def times(self, texts: Sequence[str]) -> Times:
        return self._times.parse(texts)

    def values(self, texts: Sequence[str]) -> tuple[Sequence[str], dict[int, str], int]:
        """Return the values of texts, problems by index, and the number of clamped numbers."""
        input_format = self.input_format
        problems: dict[int, str] = {}
        if input_format.values or input_format.true or input_format.false or input_format.decimal:
            texts = [self._value(text, index, problems) for index, text in enumerate(texts)]
        clamped = 0
        if input_format.clamp:
            texts, clamped = self._clamped(texts)
        return texts, problems, clamped

    def fields(
        self, rows: Sequence[Sequence[str]], places: Sequence[int]
    ) -> tuple[NDArray[np.int64], dict[int, str]]:
        """Return the fields of events as integers, shape (rows, fields), and problems by index."""
        problems: dict[int, str] = {}
        columns: list[Sequence[str]] = [[row[place] for row in rows] for place in places]
        if self.input_format.decimal is not None:
            columns = [
                [self._value(text, index, problems) for index, text in enumerate(texts)]
                if field in self.domain.number_fields
                else texts
                for field, texts in zip(self.domain.fields or (), columns, strict=True)
            ]
        values, found = self.domain.parse_fields(columns, len(rows))
        return values, found | problems

    def check_placing(self, name: str, placing: str) -> None:
        """Raise `InputError` if a file has epochs, but its events must have times."""
        timed = getattr(self.domain, "timed", "")
        if timed and placing == "epoch":
            raise InputError(
                f"{name}: rows have epochs, but {timed} counts calendar days or periods: rows must "
                "have times"
            )

    def with_accepted_texts(self, problems: dict[int, str]) -> dict[int, str]:
        """Return the domain's `problems`, each with the configured texts for 1 and 0 added."""
        words = [*self.input_format.true, *self.input_format.false]
        if not words:
            return problems
        known = ", ".join(words[:_MOST_NAMED]) + (" ..." if len(words) > _MOST_NAMED else "")
        return {
            index: f"{why}, nor one of the texts that 'input' defines: {known}"
            for index, why in problems.items()
        }

    def _value(self, text: str, index: int, problems: dict[int, str]) -> str:
        known = self._known
        if text not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[text] = self._meaning(text)
        meaning = known[text]
        if meaning is None:
            problems[index] = f"value {shown(text)} has a decimal point; expected a decimal comma"
            return ""
        return meaning

    def _meaning(self, text: str) -> str | None:
        input_format = self.input_format
        mapped = input_format.values.get(text.strip())
        if mapped is not None:
            return mapped
        word = input_format.words.get(folded(text))
        if word is not None:
            return word
        if input_format.decimal is None:
            return text
        other = "." if input_format.decimal == "," else ","
        if _GROUPED[input_format.decimal].fullmatch(text):
            text = text.replace(other, "")
        plain = text.replace(input_format.decimal, ".")
        if input_format.decimal == "," and "." in text and not math.isnan(number_of(text)):
            return None
        return text if math.isnan(number_of(plain)) else plain

    def _clamped(self, texts: Sequence[str]) -> tuple[Sequence[str], int]:
        assert self.domain.ends is not None
        low, high = self.domain.ends
        numbers: NDArray[np.float64] = np.fromiter(map(number_of, texts), np.float64, len(texts))
        finite = np.isfinite(numbers)
        below, above = finite & (numbers < low), finite & (numbers > high)
        outside = np.flatnonzero(below | above).tolist()
        if not outside:
            return texts, 0
        ends = [_written(low), _written(high)]
        texts = list(texts)
        for index in outside:
            texts[index] = ends[int(above[index])]
        return texts, len(outside)


def _written(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)
