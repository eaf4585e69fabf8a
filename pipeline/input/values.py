"""What a row's value may be.

A domain turns the texts of a column into numbers from 0 on. Readers know values only through it, so
a protocol over item labels or measurements reads the same files as a Boolean one.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.input.times import shown


class ValueDomain(Protocol):
    """The values a protocol takes."""

    @property
    def initial(self) -> int:
        """The value of a user before its first row."""

    @property
    def size(self) -> int:
        """Values are 0 to this one, exclusive."""

    @property
    def slots(self) -> int | None:
        """How many values a user has at most at an epoch: a set of items, new at each.

        None: exactly one, which holds until it changes.
        """

    @property
    def items(self) -> tuple[str, ...] | None:
        """Labels of the values 1, 2, ... that are counted each; None: 1 alone is counted."""

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """A column's values (len(texts),) in one fixed dtype, and what is wrong by index.

        Of sets the shape may be (len(texts), items): a text may stand for several, 0 for none.
        Where something is wrong any value may stand.
        """


_BOOLEANS = {"0": 0, "1": 1, "false": 0, "true": 1}


class BooleanDomain:
    """0 or 1, also written false or true in any case; int8.

    >>> BooleanDomain().parse(["1", "False", "yes"])
    (array([1, 0, 0], dtype=int8), {2: "value 'yes' is not 0 or 1"})
    """

    initial = 0
    size = 2
    slots = None
    items = None

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


class CategoryDomain:
    """Items of a list of labels, numbered from 1; an empty value is 0, no item. int16, or
    int32 for more than 2^15 - 1.

    >>> CategoryDomain(["walk", "bus", "car"]).parse(["car", "", "buss"])[0]
    array([3, 0, 0], dtype=int16)

    Args:
        labels: distinct.
    """

    initial = 0
    slots = None

    def __init__(self, labels: Sequence[str]) -> None:
        self.items = tuple(labels)
        self.size = 1 + len(labels)
        self._numbers = {label: number for number, label in enumerate(labels, 1)} | {"": 0}

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
            number = self._numbers.get(text)
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
