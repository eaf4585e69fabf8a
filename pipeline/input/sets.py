"""Sets of items as values: what protocols are given that count each epoch by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.input.numbers import NumericDomain
from pipeline.input.predicates import PredicateValues
from pipeline.input.times import shown
from pipeline.input.values import CategoryDomain
from randomizers.item_domains import (
    Bits,
    ItemDomain,
    Numbers,
    Points,
    Predicates,
    Strings,
    domain_size,
)
from randomizers.open_domains import OpenDomain, ShortStrings, WholeNumbers

MOST_LABELLED = 1 << 20
"""Domains up to this size have a label for every item."""


class _Parsed(Protocol):
    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]: ...


class SetDomain:
    """At most `slots` items of a domain at every epoch; an empty value is no item. int64.

    >>> SetDomain(Points((3, 4)), slots=1).parse(["0;0", "2;3", "3;0", ""])
    ... # doctest: +NORMALIZE_WHITESPACE
    (array([ 1, 12,  0,  0]), {2: "value '3;0' is no point of the grid 3 x 4, such as '2;3'"})

    Args:
        domain: as the job file says.
        slots: the most items of a user.
    """

    initial = 0

    def __init__(self, domain: ItemDomain, slots: int) -> None:
        self.domain = domain
        self.slots = slots
        self.size = 1 + domain_size(domain)

    @cached_property
    def items(self) -> tuple[str, ...] | None:
        """A label for every item of a domain that can be listed; None for one that cannot."""
        if self.size > MOST_LABELLED:
            return None
        match self.domain:
            case Bits() | Strings():
                return tuple(self.label(number) for number in range(1, self.size))
            case Numbers():
                return self.numbers.items
            case Points():
                return tuple(
                    ";".join(map(str, point)) for point in product(*map(range, self.domain.grid))
                )
            case Predicates():
                return self.domain.names
            case _:
                return self.domain

    def label(self, item: int) -> str:
        """The name of an item, from 1 on."""
        match self.domain:
            case Bits() | Strings():
                value = self._open.value(item)
                return f"#{item}" if value is None else str(value)
            case Numbers():
                return self.numbers.items[item - 1]
            case Points():
                return ";".join(map(str, np.unravel_index(item - 1, self.domain.grid)))
            case Predicates():
                return self.domain.names[item - 1]
            case _:
                return self.domain[item - 1]

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """See `pipeline.input.values.ValueDomain.parse`."""
        match self.domain:
            case Numbers():
                return _with_empty(self.numbers, texts)
            case Bits() | Strings() | Points():
                return self._one_by_one(texts)
            case Predicates():
                return self._predicates.parse(texts)
            case _:
                return self.named(texts)

    def named(self, names: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        """Items by what `label` calls them, as `parse` has them: of predicates, their names."""
        if not isinstance(self.domain, tuple | Predicates):
            return self.parse(names)
        values, problems = self._labels.parse(names)
        return values.astype(np.int64), problems

    def _one_by_one(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], dict[int, str]]:
        """Every different text once."""
        known: dict[str, int | str] = {"": 0}
        values, problems = np.zeros(len(texts), np.int64), {}
        for index, text in enumerate(texts):
            found = known.get(text)
            if found is None:
                found = known[text] = self._number(text.strip())
            if isinstance(found, str):
                problems[index] = found
            else:
                values[index] = found
        return values, problems

    def _number(self, text: str) -> int | str:
        if not text:
            return 0
        if isinstance(self.domain, Points):
            return self._point(text, self.domain.grid)
        try:
            return int(self._open.numbers([text])[0])
        except ValueError as error:
            return f"value {shown(text)} {str(error).removeprefix(repr(text)).lstrip()}"

    @staticmethod
    def _point(text: str, grid: tuple[int, ...]) -> int | str:
        try:
            point = [int(each) for each in text.split(";")]
            return int(np.ravel_multi_index(point, grid)) + 1
        except (ValueError, TypeError):
            example = ";".join(str(size - 1) for size in grid)
            sides = " x ".join(map(str, grid))
            return f"value {shown(text)} is no point of the grid {sides}, such as {shown(example)}"

    @cached_property
    def _open(self) -> OpenDomain:
        if isinstance(self.domain, Bits):
            return WholeNumbers(self.domain.bits)
        assert isinstance(self.domain, Strings)
        return ShortStrings(self.domain.strings.bytes)

    @cached_property
    def numbers(self) -> NumericDomain:
        """The buckets of a domain of numbers."""
        assert isinstance(self.domain, Numbers)
        return NumericDomain(self.domain.low, self.domain.high, self.domain.buckets)

    @cached_property
    def _labels(self) -> CategoryDomain:
        assert self.items is not None
        return CategoryDomain(self.items)

    @cached_property
    def _predicates(self) -> PredicateValues:
        assert isinstance(self.domain, Predicates)
        return PredicateValues(self.domain, self.slots)


def _with_empty(domain: _Parsed, texts: Sequence[str]) -> tuple[NDArray[np.int64], dict[int, str]]:
    """What the domain makes of them, with 0 for empty ones."""
    values, problems = domain.parse(texts)
    empty = [index for index in problems if not texts[index].strip()]
    values = values.astype(np.int64)
    values[empty] = 0
    return values, {index: why for index, why in problems.items() if index not in empty}
