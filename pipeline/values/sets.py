"""Sets of items as values, for protocols with independent epochs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.boxes import Box, empty, two_ends
from dpstream.pipeline.values.numeric_values import NumericDomain
from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import CategoryDomain, ValueDomain
from dpstream.randomizers.item_domains import (
    MOST_PUBLISHED,
    Bits,
    ItemDomain,
    Numbers,
    Points,
    Strings,
    domain_size,
)
from dpstream.randomizers.open_domains import OpenDomain, ShortStrings, WholeNumbers

MOST_LABELED = 1 << 20
"""Maximum size of a domain that has a label for every item."""

Parsed = tuple[NDArray[Any], dict[int, str]]


class SetDomain(ValueDomain):
    """At most `slots` items of a domain at every epoch; an empty value means no item. int64.

    If `slots` is None, a user has one item at a time, which holds until it changes. The class
    itself handles labels; for other domains, the constructor returns an instance of a subclass.

    >>> SetDomain(Points((3, 4)), slots=1).parse(["0;0", "2;3", "3;0", ""])
    ... # doctest: +NORMALIZE_WHITESPACE
    (array([ 1, 12,  0,  0]),
     {2: "value '3;0' is not a point of the grid 3 x 4; expected one like '2;3'"})
    """

    initial = 0
    about = "items"
    supported_options: tuple[str, ...] = ("--item", "--top", "--range")

    def __new__(cls, domain: ItemDomain = (), slots: int | None = 1) -> SetDomain:
        return super().__new__(_KINDS.get(type(domain), cls))

    def __init__(self, domain: ItemDomain, slots: int | None) -> None:
        self.domain = domain
        self.slots = slots
        self.size = 1 + domain_size(domain)
        self.kind = "items" if self.size - 1 <= MOST_PUBLISHED else "found"
        if slots is None:
            # Ranges and quantiles come from the counts of single epochs.
            self.supported_options = ("--item", "--top")

    @property
    def identity(self) -> object:
        return self.domain

    @cached_property
    def items(self) -> tuple[str, ...] | None:
        return self.every_label if self.size <= MOST_LABELED else None

    @property
    def nameable(self) -> tuple[str, ...] | None:
        """Items of a fully published domain; None if only the most frequent items are published."""
        return self.every_label if self.kind == "items" else None

    @cached_property
    def every_label(self) -> tuple[str, ...]:
        assert isinstance(self.domain, tuple)
        return self.domain

    def label(self, item: int) -> str:
        return self.every_label[item - 1]

    def parse(self, texts: Sequence[str]) -> Parsed:
        return self.named(texts)

    def named(self, names: Sequence[str]) -> Parsed:
        values, problems = self._by_label.parse(names)
        return values.astype(np.int64), problems

    @cached_property
    def _by_label(self) -> CategoryDomain:
        return CategoryDomain(self.every_label)

    def range(self, text: str, option: str = "--range") -> Box:
        two_ends(text, option)
        labels = set(self.every_label)
        # Labels can contain colons themselves.
        places = [place for place, letter in enumerate(text) if letter == ":"]
        pairs = [(text[:place].strip(), text[place + 1 :].strip()) for place in places]
        ends = next((pair for pair in pairs if labels.issuperset(pair)), pairs[0])
        first, last = (self.numbers_of([end], option)[0] - 1 for end in ends)
        if first > last:
            raise empty(text, option)
        return Box(" to ".join(ends), (first,), (last + 1,))

    def quantile(self, value: float, low: int, high: int) -> tuple[float, float, float]:
        """Clip to the values, because a tree can have more leaves than values."""
        last = self.size - 2
        return super().quantile(min(value, last), min(low, last), min(high, last + 1))


class _NumberSets(SetDomain):
    """Sets of numbers whose quantiles are displayed as the start of a bucket."""

    domain: Numbers
    about = "numbers"
    supported_options = ("--item", "--top", "--range", "--quantile")
    numeric = True

    def __init__(self, domain: ItemDomain, slots: int | None) -> None:
        super().__init__(domain, slots)
        self._buckets = NumericDomain(self.domain.low, self.domain.high, self.domain.buckets)
        self.step = self.width = self._buckets.width

    @property
    def ends(self) -> tuple[float, float]:
        return self._buckets.ends

    @cached_property
    def every_label(self) -> tuple[str, ...]:
        return self._buckets.items

    def parse(self, texts: Sequence[str]) -> Parsed:
        values, problems = self._buckets.parse(texts)
        absent = [index for index in problems if not texts[index].strip()]
        values = values.astype(np.int64)
        values[absent] = 0
        return values, {index: why for index, why in problems.items() if index not in absent}

    def named(self, names: Sequence[str]) -> Parsed:
        numbers = {label: at for at, label in enumerate(self.every_label, 1)}
        values, problems = self.parse(names)
        for index, name in enumerate(map(str.strip, names)):
            if name in numbers:
                values[index] = numbers[name]
                problems.pop(index, None)
            elif index in problems:
                problems[index] += f" (buckets have names like {shown(self.every_label[0])})"
        return values, problems

    def range(self, text: str, option: str = "--range") -> Box:
        return self._buckets.range(text, option)

    def quantile(self, value: float, low: int, high: int) -> tuple[float, float, float]:
        found, first, last = super().quantile(value, low, high)
        return self._buckets.quantile(found, int(first), int(last) + 1)

    def value_within(self, index: int, part: float) -> float:
        return self._buckets.edge(index)


class _WrittenOut(SetDomain):
    @cached_property
    def every_label(self) -> tuple[str, ...]:
        return tuple(map(self.label, range(1, self.size)))

    def parse(self, texts: Sequence[str]) -> Parsed:
        known: dict[str, int | str] = {"": 0}
        values, problems = np.zeros(len(texts), np.int64), {}
        for index, text in enumerate(texts):
            found = known.get(text)
            if found is None:
                found = known[text] = self._number(text.strip()) if text.strip() else 0
            if isinstance(found, str):
                problems[index] = found
            else:
                values[index] = found
        return values, problems

    def named(self, names: Sequence[str]) -> Parsed:
        return self.parse(names)

    def range(self, text: str, option: str = "--range") -> Box:
        return ValueDomain.range(self, text, option)

    @abstractmethod
    def _number(self, text: str) -> int | str:
        """Return the number of the item that a text represents, or the text's problem."""


class _PointSets(_WrittenOut):
    domain: Points

    def __init__(self, domain: ItemDomain, slots: int | None) -> None:
        super().__init__(domain, slots)
        single = len(self.grid) == 1
        self.about = "points of an axis" if single else "points of a grid"
        if slots is not None:
            axis = ("--range", "--quantile") if single else ()
            self.supported_options = ("--item", "--top", *axis, "--box")

    @property
    def grid(self) -> tuple[int, ...]:
        return self.domain.grid

    @cached_property
    def every_label(self) -> tuple[str, ...]:
        return tuple(";".join(map(str, point)) for point in product(*map(range, self.grid)))

    def label(self, item: int) -> str:
        return ";".join(map(str, np.unravel_index(item - 1, self.grid)))

    def _number(self, text: str) -> int | str:
        try:
            point = [int(each) for each in text.split(";")]
            return int(np.ravel_multi_index(point, self.grid)) + 1
        except (ValueError, TypeError):
            example = ";".join(str(size - 1) for size in self.grid)
            sides = " x ".join(map(str, self.grid))
            return (
                f"value {shown(text)} is not a point of the grid {sides}; expected one like "
                f"{shown(example)}"
            )


class _OpenSets(_WrittenOut):
    def label(self, item: int) -> str:
        value = self._open.value(item)
        return f"#{item}" if value is None else str(value)

    def _number(self, text: str) -> int | str:
        try:
            return int(self._open.numbers([text])[0])
        except ValueError as error:
            expected = str(error).rpartition("; ")[2]
            return f"value {shown(text)} is not in the domain; {expected}"

    @property
    @abstractmethod
    def _open(self) -> OpenDomain: ...


class _NumberedSets(_OpenSets):
    domain: Bits
    about = "whole numbers"
    supported_options = ("--item", "--top", "--range", "--quantile")
    numeric = True

    @property
    def ends(self) -> tuple[float, float] | None:
        # Floats represent integers exactly up to 2^53.
        return (0.0, float((1 << self.domain.bits) - 1)) if self.domain.bits <= 53 else None

    @cached_property
    def _open(self) -> OpenDomain:
        return WholeNumbers(self.domain.bits)


class _TextSets(_OpenSets):
    domain: Strings
    about = "texts"
    supported_options = ("--item", "--top")

    @cached_property
    def _open(self) -> OpenDomain:
        return ShortStrings(self.domain.strings.bytes)


_KINDS: Mapping[type, type[SetDomain]] = {
    Bits: _NumberedSets,
    Numbers: _NumberSets,
    Points: _PointSets,
    Strings: _TextSets,
}
