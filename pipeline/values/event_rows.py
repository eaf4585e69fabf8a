"""Rows of events: the name, numbers and labels of an event, as integers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.numeric_values import number_of
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.event_histories import label_number
from dpstream.randomizers.measures import OTHER

_EMPTY: Final[Mapping[str, Any]] = {}

EVENT: Final = "event"
"""Column with the names of events; ``input.columns`` can rename it."""


class EventDomain(ValueDomain):
    """Fields of events that measures and attributes use; int64, shape (rows, fields).

    * The name of an event is its position in `names`, from 0, or the number of `names`.
    * A number is the bits of its float64, or of NaN if the field is empty.
    * A label is its position among the column's declared labels, from 1; the next number for every
      other label, and 0 if the field is empty.

    `timed` names a measure or attribute for which rows must have times; empty without any.
    `starts` has the first epoch of labels that are undeclared in earlier epochs, by column.

    >>> domain = EventDomain(["search"], [], {"plan": ["free", "pro"]})
    >>> domain.fields, domain.parse_fields([["open", "search"], ["pro", ""]], 2)[0].tolist()
    (('event', 'plan'), [[1, 2], [0, 0]])
    """

    initial = 0
    size = 1
    slots = None
    kind = "items"
    about = "events"
    supported_options = ()

    def __init__(
        self,
        names: Iterable[str],
        numbers: Iterable[str],
        labels: Mapping[str, Sequence[str]],
        timed: str = "",
        starts: Mapping[str, Mapping[str, int]] = _EMPTY,
    ) -> None:
        self.timed = timed
        self.starts = starts
        self.names = tuple(dict.fromkeys(names))
        self.numbers = tuple(dict.fromkeys(numbers))
        self.declared = {column: tuple(values) for column, values in labels.items()}
        self.fields: tuple[str, ...] = (
            *([EVENT] if self.names else []),
            *self.numbers,
            *self.declared,
        )
        self.number_fields = frozenset(self.numbers)
        self.numeric = bool(self.numbers)
        self._first_number = int(bool(self.names))
        self._first_label = self._first_number + len(self.numbers)

    @property
    def items(self) -> None:
        """None, because events are no answers."""

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        return self.parse_fields([texts], len(texts))

    def parse_fields(
        self, columns: Sequence[Sequence[str]], rows: int
    ) -> tuple[NDArray[np.int64], dict[int, str]]:
        values = np.empty((rows, len(columns)), np.int64)
        problems: dict[int, str] = {}
        for place, texts in enumerate(columns):
            if place < self._first_number:
                numbers = {name: number for number, name in enumerate(self.names)}
                found = map(numbers.get, texts, repeat(len(numbers)))
                values[:, place] = np.fromiter(found, np.int64, rows)
            elif place < self._first_label:
                values[:, place] = self._number_bits(self.fields[place], texts, problems)
            else:
                values[:, place] = _label_numbers(texts, self.declared[self.fields[place]])
        return values, problems

    def place_of(self, column: str, *, number: bool = False) -> int:
        if number:
            return self._first_number + self.numbers.index(column)
        return self._first_label + list(self.declared).index(column)

    def numbers_of_labels(self, column: str, values: Sequence[str]) -> list[int]:
        """Return the number of each label of a column among an attribute's `values`, from 0.

        Undeclared labels, and labels declared for others, have number 1, that of `OTHER`.
        """
        known = ("none", *self.declared[column], OTHER)
        return [values.index(each) if each in values else 1 for each in known]

    def at_epochs(
        self, fields: NDArray[np.int64], epochs: NDArray[np.integer]
    ) -> NDArray[np.int64]:
        """Return rows as they count at their epochs: before a label's start, it is undeclared."""
        for column, starts in self.starts.items():
            place, labels = self.place_of(column), self.declared[column]
            for label, start in starts.items():
                early = (fields[:, place] == labels.index(label) + 1) & (epochs < start)
                if early.any():
                    fields = fields.copy()
                    fields[early, place] = len(labels) + 1
        return fields

    def event_of(self, row: Sequence[int]) -> tuple[str, dict[str, float], dict[str, str]]:
        """Return the name, numbers and labels of a row, as arguments of `EventHistory.record`.

        Undeclared names are empty, and undeclared labels are `OTHER`.
        """
        name = (*self.names, "")[row[0]] if self.names else ""
        bits = np.array(row[self._first_number : self._first_label], np.int64)
        numbers = dict(zip(self.numbers, bits.view(np.float64).tolist(), strict=True))
        labels = zip(self.declared.items(), row[self._first_label :], strict=True)
        return (
            name,
            {column: number for column, number in numbers.items() if not math.isnan(number)},
            {column: ("", *values, OTHER)[place] for (column, values), place in labels},
        )

    def _number_bits(
        self, column: str, texts: Sequence[str], problems: dict[int, str]
    ) -> NDArray[np.int64]:
        numbers = np.fromiter(map(number_of, texts), np.float64, len(texts))
        for index in np.flatnonzero(~np.isfinite(numbers)).tolist():
            if texts[index].strip():
                problems[index] = f"{column} {shown(texts[index])} is not a number"
            numbers[index] = math.nan
        return numbers.view(np.int64)


def _label_numbers(texts: Sequence[str], declared: Sequence[str]) -> NDArray[np.int64]:
    known = {text: label_number(normalize("NFC", text.strip()), declared) for text in set(texts)}
    return np.fromiter(map(known.__getitem__, texts), np.int64, len(texts))
