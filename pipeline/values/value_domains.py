"""What a row's value may be.

A domain turns the texts of a column into numbers from 0 on. Readers know values only through it, so
a protocol over item labels or measurements reads the same files as a Boolean one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import repeat
from typing import Any, Final, Literal, TypeAlias
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.boxes import Box, QueryError, grid_box, whole_range
from dpstream.pipeline.values.times import shown

Kind: TypeAlias = Literal["value", "items", "numbers", "found"]
"""What is published: one count, those of all items, of buckets, or of the items most held."""

BETWEEN: Final = ": "
"""What stands between a crowd and an item."""

_ABOUT = {
    "--item": "items",
    "--top": "items",
    "--range": "numbers",
    "--quantile": "numbers",
    "--box": "points of a grid",
}


class ValueDomain(ABC):
    """The values a protocol takes, and what can be asked about them.

    Attributes:
        initial: the value of a user before its first row.
        size: values are 0 to this one, exclusive.
        slots: how many values a user has at most at an epoch: a set of items, new at each; None:
            exactly one, which holds until it changes.
        columns: how many whole numbers a value is made of, 0 throughout before a user's first row;
            None: it is one number.
        width: of a bucket, where values are numbers; numbers are shown to a tenth of it.
        kind: what is published.
        measured: What the one value published is, and its unit, where it is no number of users.
        about: the values, in words.
        asks: the options that ask about them; none where a single value is counted.
        step: how far apart quantiles can be told; None where values are spread evenly between.
        numeric: whether texts are numbers, of which a comma may be meant as the decimal point.
        column: of the crowd that a user is in, which is public; None where there are no crowds.
        crowds: their labels.
    """

    initial: int
    size: int
    slots: int | None
    columns: int | None = None
    width: float = 1.0
    kind: Kind
    measured: tuple[str, str] | None = None
    about: str
    asks: tuple[str, ...]
    step: float | None = None
    numeric: bool = False
    column: str | None = None
    crowds: tuple[str, ...] = ()

    @property
    def measure(self) -> str | None:
        """`measured` in words."""
        return None if self.measured is None else ", ".join(self.measured)

    @property
    @abstractmethod
    def items(self) -> tuple[str, ...] | None:
        """Labels of the values 1, 2, ... that are counted each; None: 1 alone, or too many."""

    @property
    def nameable(self) -> tuple[str, ...] | None:
        """The values that a job may have words of its own for; None: any, of too many to list."""
        return ()

    @abstractmethod
    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """A column's values (len(texts),) in one fixed dtype, and what is wrong by index.

        Of sets the shape may be (len(texts), items): a text may stand for several, 0 for none.
        Where something is wrong any value may stand.
        """

    @property
    def ends(self) -> tuple[float, float] | None:
        """The lowest and the highest number that is a value; None where values have no such."""
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what a user has at an epoch."""
        numbers = self.columns if self.slots is None else self.slots
        return () if numbers is None else (numbers,)

    @property
    def identity(self) -> object:
        """What tells its values from those of other domains."""
        return self.items

    def text_of(self, crowd: str, value: str) -> str:
        """What `parse` reads, of the columns of a row; without crowds the value alone."""
        return value

    def crowds_of(self, values: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The crowd of each value, of the same shape; None where there are no crowds."""
        return None

    def numbers_in(self, crowd: str, option: str = "--crowd") -> range:
        """The numbers of a crowd and the items in it, by its label.

        Raises:
            QueryError: there is no such crowd, or there are no crowds.
        """
        raise QueryError(f"{option} is for jobs with crowds, this one has none")

    @property
    def grid(self) -> tuple[int, ...]:
        """How many values there are along each axis."""
        return (self.size - 1,)

    def label(self, item: int) -> str:
        """The name of an item, from 1 on; empty where a single value is counted."""
        return "" if self.items is None else self.items[item - 1]

    def labels(self, items: NDArray[np.int64]) -> list[str]:
        """The names of items."""
        return [self.label(item) for item in items.tolist()]

    def named(self, names: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """Items by what `label` calls them, as `parse` has them."""
        return self.parse(names)

    def check_asks(self, option: str) -> None:
        """Raise `QueryError` unless an option asks about such values."""
        if option not in self.asks:
            others, last = ", ".join(self.asks[:-1]), "".join(self.asks[-1:])
            instead = f"of {self.about} give {others} or {last}"
            raise QueryError(
                f"{option} is for jobs over {_ABOUT[option]}; "
                f"{instead if self.asks else 'this one counts one value'}"
            )

    def numbers_of(self, names: Sequence[str], option: str = "--item") -> tuple[int, ...]:
        """The numbers of items by their names, each once.

        Raises:
            QueryError: one is not of the domain; the message may guess what was meant.
        """
        numbers, problems = self.named(names)
        for problem in problems.values():
            raise QueryError(f"{option}: {problem.removeprefix('value ')}")
        if not len(names) or not all(numbers):
            raise QueryError(f"{option} is empty: give the name of an item")
        return tuple(dict.fromkeys(numbers.tolist()))

    def range(self, text: str, option: str = "--range") -> Box:
        """A range ``LOW:HIGH``; an end that is left out is that of all values.

        Raises:
            QueryError: there is no such range.
        """
        return whole_range(text, self.size - 1, option)

    def box(self, text: str, option: str = "--box") -> Box:
        """A box ``A1:B1,A2:B2``, both ends included.

        Raises:
            QueryError: there is no such box.
        """
        return grid_box(text, self.grid, option)

    def quantile(self, value: float, low: int, high: int) -> tuple[float, float, float]:
        """A quantile and its interval as values, from places along the axis: `high` is after it."""
        return value, low, high - 1

    def true_quantile(
        self, items: NDArray[np.integer], counts: NDArray[np.number[Any]], share: float
    ) -> float | None:
        """The quantile of what users have; None where no user has a value.

        Args:
            items: that users have, ascending.
            counts: of users with each of them.
            share: above 0 and below 1.
        """
        if not counts.any():
            return None
        below = np.cumsum(counts)
        wanted = share * float(below[-1])
        place = int(np.searchsorted(below, wanted))
        part = (wanted - float(below[place] - counts[place])) / float(counts[place])
        return self.value_within(int(items[place]) - 1, part)

    def value_within(self, index: int, part: float) -> float:
        """The value at so large a part of a value or bucket, counted from 0."""
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
    asks = ()

    @property
    def items(self) -> None:
        """None: one value is counted."""

    @property
    def nameable(self) -> tuple[str, ...]:
        """Both."""
        return "0", "1"

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """See `ValueDomain.parse`."""
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
    """Items of a list of labels, numbered from 1; an empty value is 0, no item. int16, or
    int32 for more than 2^15 - 1.

    >>> CategoryDomain(["walk", "bus", "car"]).parse(["car", "", "buss"])[0]
    array([3, 0, 0], dtype=int16)

    Args:
        labels: distinct.
    """

    initial = 0
    slots = None
    kind = "items"
    about = "items"
    asks = ("--item", "--top")

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = tuple(labels)
        self.size = 1 + len(labels)
        self._numbers = {label: number for number, label in enumerate(labels, 1)} | {"": 0}

    @property
    def items(self) -> tuple[str, ...]:
        """The labels."""
        return self._labels

    @property
    def nameable(self) -> tuple[str, ...]:
        """All of them."""
        return self._labels

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """See `ValueDomain.parse`."""
        dtype = np.int16 if self.size <= np.iinfo(np.int16).max else np.int32
        values: NDArray[np.integer] = np.fromiter(
            map(self._numbers.get, texts, repeat(-1)), dtype, len(texts)
        )
        reasons: dict[str, str] = {}
        problems: dict[int, str] = {}
        for index in np.flatnonzero(values < 0).tolist():
            text = texts[index].strip()
            # Labels of jobs have their accents composed.
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
            f"value {shown(text)} is not in the domain, whose {len(self.items):,} labels begin "
            f"with {first}"
        )


# Guessing what was meant is slow: in a file of many wrong values nobody reads more of it.
_GUESSES = 10
_LONGEST_GUESSED = 100
