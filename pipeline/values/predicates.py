"""Named conditions on the values of rows: families of sparse counting queries.

A counting query asks for the number of users with some property. If at most k of many properties
hold for a user, all queries are answered together, like item counts. A condition is a list of
values or a range.

Reference: Ghazi, Golowich, Kumar, Pagh, Velingker, *On the Power of Multiple Anonymous Messages*,
2019, Appendix B.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.numeric_values import number_of
from dpstream.pipeline.values.times import shown
from dpstream.randomizers.item_domains import (
    Predicates,
)


class PredicateValues:
    """Parser that maps each value to the conditions that it meets, as items.

    >>> values = PredicateValues(Predicates({"odd": ("7", "61"), "old": {"from": 60}}), most=2)
    >>> values.parse(["61", "7.0", "30", ""])[0].tolist()
    [[1, 2, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]

    `most` is the maximum number of items per value. If a value exceeds it, `parse` returns one more
    item, to indicate this.
    """

    def __init__(self, predicates: Predicates, most: int) -> None:
        self._width = most + 1
        self._texts: defaultdict[str, list[int]] = defaultdict(list)
        self._numbers: defaultdict[float, list[int]] = defaultdict(list)
        bounded: list[tuple[int, float, float]] = []
        for item, name in enumerate(predicates.names, 1):
            condition = predicates.predicates[name]
            if isinstance(condition, dict):
                ends = condition.get("from", -math.inf), condition.get("below", math.inf)
                bounded.append((item, *ends))
                continue
            for text in condition:
                self._texts[text.strip()].append(item)
                self._numbers[number_of(text)].append(item)
        self._only_numbers = not any(math.isnan(number_of(text)) for text in self._texts)
        columns = np.array(bounded, np.float64).reshape(-1, 3).T
        self._bounded, (self._from, self._below) = columns[0].astype(np.int64), columns[1:]

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], dict[int, str]]:
        """Return ascending items from 1, shape (len(texts), most + 1), padded with 0, and problems.

        If all conditions are about numbers, texts that are not numbers are problems.
        """
        known: dict[str, NDArray[np.int64] | str] = {}
        items, problems = np.zeros((len(texts), self._width), np.int64), {}
        for index, text in enumerate(texts):
            found = known.get(text)
            if found is None:
                # Values of jobs have composed accents (NFC).
                found = known[text] = self._met(normalize("NFC", text.strip()))
            if isinstance(found, str):
                problems[index] = found
            else:
                items[index, : len(found)] = found
        return items, problems

    def _met(self, text: str) -> NDArray[np.int64] | str:
        number = number_of(text)
        if math.isnan(number):
            if text and self._only_numbers:
                return f"value {shown(text)} is not a number"
            listed = self._texts.get(text, [])
        else:
            listed = [*self._texts.get(text, []), *self._numbers.get(number, [])]
        bounded = self._bounded[(self._from <= number) & (number < self._below)]
        return np.union1d(np.array(listed, np.int64), bounded)[: self._width]
