"""Value domains: the possible values of a row.

A domain converts a column's texts to integers from 0. Readers access values only through a domain,
so protocols over labels or measurements read the same files as Boolean protocols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import repeat
from typing import Any, Final, Literal, TypeAlias
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.boxes import Box, QueryError, grid_box, whole_range
from dpstream.pipeline.values.times import shown

Kind: TypeAlias = Literal["value", "items", "numbers", "found"]
"""Kind of published estimates: one count, all items, all buckets, or the top items."""

BETWEEN: Final = ": "

_ABOUT = {
    "--item": "items",
    "--top": "items",
    "--range": "numbers",
    "--quantile": "numbers",
    "--box": "points of a grid",
}


class ValueDomain(ABC):
    """Values that a protocol accepts, and the valid queries about these values.

    Attributes:
        initial: Value of a user before its first row.
        size: Exclusive upper bound of values, which start at 0.
        slots: Maximum number of values per user and epoch, if each epoch has new sets; None for
            exactly one value, which holds until it changes.
        columns: Number of integers per value, all 0 before a user's first row; None for one
            integer.
        width: Width of a bucket; numbers are displayed to a tenth of this width.
        kind: Form in which estimates are published.
        supported_options: Query options; empty if a single value is counted.
        step: Resolution of quantiles; None if values are interpolated evenly.
        numeric: True if texts are numbers, in which a comma can be a decimal point.
        column: Public column with the user's crowd; None without crowds.
        fields: Columns of a row of events, in place of the column `value`; None for values.
        number_fields: Those of the fields that contain numbers.
        attributes: Names of the public attributes that are given when a user is enrolled.
        groups: Number of groups of users with the same public attributes.
    """

    initial: int
    size: int
    slots: int | None
    columns: int | None = None
    width: float = 1.0
    kind: Kind
    about: str
    supported_options: tuple[str, ...]
    step: float | None = None
    numeric: bool = False
    column: str | None = None
    crowds: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    number_fields: frozenset[str] = frozenset()
    attributes: tuple[str, ...] = ()
    groups: int = 1

    @property
    @abstractmethod
    def items(self) -> tuple[str, ...] | None:
        """Labels of the values 1, 2, ... if these are few and counted separately; else None."""

    @property
    def nameable(self) -> tuple[str, ...] | None:
        """Values for which a job can set display texts; None means any value."""
        return ()

    @property
    def means(self) -> frozenset[int]:
        """Numbers of the items whose estimates are means of a number, not numbers of users."""
        return frozenset()

    @abstractmethod
    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """Return a column's values, shape (len(texts),), all of one dtype, and problems by index.

        For sets, the shape can be (len(texts), items), padded with 0. Values of invalid texts are
        arbitrary.
        """

    def parse_fields(
        self, columns: Sequence[Sequence[str]], rows: int
    ) -> tuple[NDArray[Any], dict[int, str]]:
        """Return the values of rows, in the format of `parse`, from a column for each field."""
        (texts,) = columns
        return self.parse(texts)

    @property
    def ends(self) -> tuple[float, float] | None:
        """Smallest and largest number; None if values are not in a numeric range."""
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        numbers = self.columns if self.slots is None else self.slots
        return () if numbers is None else (numbers,)

    @property
    def identity(self) -> object:
        return self.items

    def text_of(self, crowd: str, value: str) -> str:
        """Join a row's columns `crowd` and `value` into the text that `parse` accepts."""
        return value

    def crowds_of(self, values: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the crowd of each value, same shape; None without crowds."""
        return None

    def group_of(self, attributes: Mapping[str, str]) -> int:
        """Return the number of a group, from 0; raise `ValueError` if no group has the values."""
        return 0

    def numbers_in(self, crowd: str) -> range:
        """Return the item numbers of the crowd with this label, or raise `QueryError`."""
        raise QueryError("--crowd requires a job with crowds; this job has no crowds")

    @property
    def grid(self) -> tuple[int, ...]:
        return (self.size - 1,)

    def label(self, item: int) -> str:
        return "" if self.items is None else self.items[item - 1]

    def labels(self, items: NDArray[np.int64]) -> list[str]:
        return [self.label(item) for item in items.tolist()]

    def named(self, names: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """Return items by their `label`, in the format of `parse`."""
        return self.parse(names)

    def check_supports(self, option: str) -> None:
        if option not in self.supported_options:
            others, last = (
                ", ".join(self.supported_options[:-1]),
                "".join(self.supported_options[-1:]),
            )
            instead = f"use {others} or {last} for {self.about}"
            raise QueryError(
                f"{option} requires a job over {_ABOUT[option]}; "
                f"{instead if self.supported_options else 'this job counts one value'}"
            )

    def numbers_of(self, names: Sequence[str], option: str = "--item") -> tuple[int, ...]:
        """Return the distinct numbers of items by name; raise `QueryError` for unknown names."""
        numbers, problems = self.named(names)
        for problem in problems.values():
            raise QueryError(f"{option}: {problem.removeprefix('value ')}")
        if not len(names) or not all(numbers):
            raise QueryError(f"{option} is empty; expected the name of an item")
        return tuple(dict.fromkeys(numbers.tolist()))

    def range(self, text: str, option: str = "--range") -> Box:
        """Parse a range ``LOW:HIGH``; an omitted end means the first or the last value."""
        return whole_range(text, self.size - 1, option)

    def box(self, text: str, option: str = "--box") -> Box:
        return grid_box(text, self.grid, option)

    def quantile(self, value: float, low: int, high: int) -> tuple[float, float, float]:
        """Convert a quantile and its interval [low, high) from positions on the axis to values."""
        return value, low, high - 1

    def true_quantile(
        self, items: NDArray[np.integer], counts: NDArray[np.number[Any]], share: float
    ) -> float | None:
        """Return the quantile of the true values, or None without values; `items` are sorted."""
        if not counts.any():
            return None
        below = np.cumsum(counts)
        target = share * float(below[-1])
        place = int(np.searchsorted(below, target))
        part = (target - float(below[place] - counts[place])) / float(counts[place])
        return self.value_within(int(items[place]) - 1, part)

    def value_within(self, index: int, part: float) -> float:
        """Return the value at the fraction `part` of the value or bucket `index`, from 0."""
        return float(index)


_BOOLEANS = {"0": 0, "1": 1, "false": 0, "true": 1}


class BooleanDomain(ValueDomain):
    """0 or 1, also written false or true in any case; int8.

    >>> BooleanDomain().parse(["1", "False", "yes"])
    (array([1, 0, 0], dtype=int8), {2: "value 'yes' is not 0 or 1"})
    """

    initial = 0
    size = 2
    slots = None
    kind = "value"
    about = "one value"
    supported_options = ()

    @property
    def items(self) -> None:
        """None, because one value is counted."""

    @property
    def nameable(self) -> tuple[str, ...]:
        return "0", "1"

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        values = np.fromiter(map(_BOOLEANS.get, texts, repeat(-1)), np.int8, len(texts))
        problems: dict[int, str] = {}
        for index in np.flatnonzero(values < 0).tolist():
            text = texts[index]
            number = _BOOLEANS.get(text.strip().lower())
            if number is None:
                problems[index] = f"value {shown(text)} is not 0 or 1"
            values[index] = number or 0
        return values, problems


BOOLEAN = BooleanDomain()


class CategoryDomain(ValueDomain):
    """Items from a list of distinct labels, numbered from 1; an empty value is 0: no item.

    The dtype is int16, or int32 for more than 2^15 - 1 values.

    >>> CategoryDomain(["walk", "bus", "car"]).parse(["car", "", "buss"])[0]
    array([3, 0, 0], dtype=int16)
    """

    initial = 0
    slots = None
    kind = "items"
    about = "items"
    supported_options = ("--item", "--top")

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        self.size = 1 + len(labels)
        self._numbers = {label: number for number, label in enumerate(labels, 1)} | {"": 0}

    @property
    def items(self) -> tuple[str, ...]:
        return self._labels

    @property
    def nameable(self) -> tuple[str, ...]:
        return self._labels

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        dtype = np.int16 if self.size <= np.iinfo(np.int16).max else np.int32
        values: NDArray[np.integer] = np.fromiter(
            map(self._numbers.get, texts, repeat(-1)), dtype, len(texts)
        )
        reasons: dict[str, str] = {}
        problems: dict[int, str] = {}
        for index in np.flatnonzero(values < 0).tolist():
            text = texts[index].strip()
            # Labels of jobs have composed accents (NFC).
            number = self._numbers.get(text, self._numbers.get(normalize("NFC", text)))
            if number is None:
                if text not in reasons:
                    reasons[text] = self._reason(text, guess=len(reasons) < _GUESSES)
                problems[index] = reasons[text]
            values[index] = number or 0
        return values, problems

    def _reason(self, text: str, *, guess: bool) -> str:
        matches = get_close_matches(text[:_LONGEST_GUESSED], self.items, 1) if guess else []
        if matches:
            return f"value {shown(text)} is not in the domain; did you mean {shown(matches[0])}?"
        first = ", ".join(map(shown, self.items[:3]))
        return (
            f"value {shown(text)} is not in the domain; its {len(self.items):,} labels start with "
            f"{first}"
        )


# Guessing is slow, and for a file with many wrong values a few guesses suffice.
_GUESSES = 10
_LONGEST_GUESSED = 100
