"""The levels of a tree over ordered values: a cell for every node, a value raises its ancestors.

The leaves are the values 0, 1, ... and stand for the items 1, 2, ...; every level joins a few
neighbouring nodes into one, up to a root that every value raises. With a cell for each node, a
range is a sum of few of them, and since a node is counted again by its children, least squares
makes all of them more accurate (`dpstream.aggregators.tree_counts`).

The root costs hardly any privacy: exchanging one value for another leaves it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

KIND = "levels"


@dataclass(frozen=True, slots=True)
class Levels:
    """A tree in which all nodes of a level have equally many children.

    Counts of nodes add up to those of their parents only if a user holds at most one item.

    >>> levels = Levels(12, (4, 3))
    >>> levels.cells, levels.messages  # the root, 4 nodes of 3 values each, and 12 leaves
    (17, 3)
    >>> levels.encode(np.array([1, 12])).tolist()
    [[0, 1, 5], [0, 4, 16]]

    Attributes:
        size: D, how many values there are: the items 1 to D.
        branching: how many children a node has, from the root down; at least 2 each. Their product
            is at least D; leaves above D are never raised, but have cells and noise all the same.

    Raises:
        ValueError: there is no such tree.
    """

    size: int
    branching: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"size is {self.size!r}, must be a whole number, at least 1")
        if not self.branching or any(type(b) is not int or b < 2 for b in self.branching):
            raise ValueError(f"branching is {self.branching}, must be whole numbers of at least 2")
        if self.leaves < self.size:
            raise ValueError(
                f"branching {self.branching} has {self.leaves} leaves, too few for {self.size}"
            )

    @property
    def leaves(self) -> int:
        """Nodes of the lowest level, at least `size`."""
        return math.prod(self.branching)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many neighbouring values a node of each level holds, from the root down to 1."""
        return tuple(self.leaves // nodes for nodes in self.nodes)

    @property
    def nodes(self) -> tuple[int, ...]:
        """How many nodes each level has, from the root's 1 down; their cells come in this order."""
        return tuple(accumulate(self.branching, mul, initial=1))

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return sum(self.nodes)

    @property
    def messages(self) -> int:
        """How many cells an item raises."""
        return len(self.branching) + 1

    @property
    def shared(self) -> int:
        """How many cells are raised by every item: the root."""
        return 1

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cells of items.

        Args:
            items: int64, shape (items,), from 1 to `size`.

        Returns:
            int64, shape (items, messages): the cells of their ancestors, from the root down.

        Raises:
            ValueError: there is no such item.
        """
        check_items(items, self.size)
        offsets = np.array([0, *accumulate(self.nodes[:-1])], np.int64)
        return offsets + (items[:, None] - 1) // np.array(self.widths, np.int64)

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {"kind": KIND, "size": self.size, "branching": list(self.branching)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        if body["kind"] != KIND:
            raise ValueError(f"kind is {body['kind']!r}, must be {KIND!r}")
        return cls(body["size"], tuple(body["branching"]))


def check_items(items: NDArray[np.int64], size: int) -> None:
    """Raise `ValueError` unless all items are from 1 to the size."""
    if len(items) and (items.min() < 1 or items.max() > size):
        wrong = items[(items < 1) | (items > size)][0]
        raise ValueError(f"item {wrong}, must be from 1 to {size}")
