"""What a row's value may be.

A domain turns the texts of a column into numbers. Readers know values only through it, so a
protocol over item labels or measurements reads the same files as a Boolean one.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """A column's values (len(texts),) in one fixed dtype, and what is wrong by index.

        Where something is wrong any value may stand.
        """


_BOOLEANS = {"0": 0, "1": 1, "false": 0, "true": 1}


class BooleanDomain:
    """0 or 1, also written false or true in any case; int8.

    >>> BooleanDomain().parse(["1", "False", "yes"])
    (array([1, 0, 0], dtype=int8), {2: "value 'yes' is not 0 or 1"})
    """

    initial = 0

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
