"""Values together with a user's crowd, which comes from a public column."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.values.times import shown
from dpstream.pipeline.values.value_domains import BETWEEN, CategoryDomain, ValueDomain


class CrowdDomain(ValueDomain):
    """Crowds, and the items of another domain (`contents`) within each crowd; int64.

    Values are numbered crowd by crowd: first the crowd itself, then its items. A user's values are
    the numbers of the crowd and of the user's items in that crowd.

    >>> from dpstream.pipeline.values.sets import SetDomain
    >>> versions = CrowdDomain(SetDomain(("dark", "light"), slots=1), "version", ("1", "2"))
    >>> versions.items
    ('1', '1: dark', '1: light', '2', '2: dark', '2: light')
    >>> versions.parse(["2: dark", "1", "", "3: dark"])[0].tolist()
    [[4, 5], [1, 0], [0, 0], [0, 0]]
    """

    initial = 0
    slots: int
    kind = "items"
    about = "items by crowd"
    supported_options = ("--item", "--top")

    def __init__(self, contents: ValueDomain, column: str, crowds: Sequence[str]) -> None:
        assert contents.slots is not None
        self.contents = contents
        self.column = column
        self.crowds = tuple(crowds)
        self.slots = 1 + contents.slots
        self.size = 1 + len(crowds) * contents.size

    @property
    def identity(self) -> object:
        return self.contents.identity, self.crowds

    @cached_property
    def items(self) -> tuple[str, ...]:
        return tuple(map(self.label, range(1, self.size)))

    @property
    def nameable(self) -> tuple[str, ...]:
        return self.items

    def label(self, item: int) -> str:
        place, within = divmod(item - 1, self.contents.size)
        crowd = self.crowds[place]
        return f"{crowd}{BETWEEN}{self.contents.label(within)}" if within else crowd

    def text_of(self, crowd: str, value: str) -> str:
        if not value.strip():
            return crowd.strip()
        return f"{crowd.strip()}{BETWEEN}{value.strip()}"

    def crowds_of(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return -(-values // self.contents.size)

    def numbers_in(self, crowd: str) -> range:
        (number,) = self._labels.numbers_of([crowd], "--crowd")
        first = 1 + (number - 1) * self.contents.size
        return range(first, first + self.contents.size)

    def parse(self, texts: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        crowds, items, problems = self._parsed(texts)
        numbers = np.where(items > 0, 1 + (crowds[:, None] - 1) * self.contents.size + items, 0)
        first = np.where(crowds > 0, 1 + (crowds - 1) * self.contents.size, 0)
        values = np.concatenate([first[:, None], numbers], axis=1)
        values[list(problems)] = 0
        return values, problems

    def named(self, names: Sequence[str]) -> tuple[NDArray[Any], dict[int, str]]:
        crowds, items, problems = self._parsed(names, named=True)
        found = np.where(crowds > 0, 1 + (crowds - 1) * self.contents.size + items[:, 0], 0)
        return found, problems

    @cached_property
    def _labels(self) -> CategoryDomain:
        return CategoryDomain(self.crowds)

    def _parsed(
        self, texts: Sequence[str], *, named: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[int, str]]:
        parted = [text.partition(BETWEEN) for text in texts]
        read = self.contents.named if named else self.contents.parse
        items, wrong_items = read([item for _, _, item in parted])
        crowds, wrong_crowds = self._labels.parse([crowd for crowd, _, _ in parted])
        problems = {
            index: problem.replace("value ", f"{self.column} ", 1).replace(
                "the domain", "the attribute's values"
            )
            for index, problem in wrong_crowds.items()
        }
        for index, (crowd, _, item) in enumerate(parted):
            if item.strip() and not crowd.strip():
                problems[index] = f"value {shown(item)} has no crowd: {self.column} is empty"
        items = items.astype(np.int64)
        return (
            crowds.astype(np.int64),
            items[:, None] if items.ndim == 1 else items,
            wrong_items | problems,
        )
