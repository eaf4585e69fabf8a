"""Levels of a tree over ordered values: one cell per node; a value raises its ancestors' cells.

The leaves are the values 0, 1, ..., which are the items 1, 2, .... Every level joins a few
neighboring nodes into one, up to a root that every value raises. A range is a sum of a few nodes.
The children of a node count its users again, so least squares makes all counts more accurate
(`dpstream.aggregators.tree_counts`).

The root costs hardly any privacy: exchanging one value for another leaves it unchanged.
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
    """A tree in which all nodes of a level have the same number of children.

    Counts of children sum to those of their parents only if a user has at most one item.

    >>> levels = Levels(12, (4, 3))
    >>> levels.cells, levels.messages  # the root, 4 nodes of 3 values each, and 12 leaves
    (17, 3)
    >>> levels.encode(np.array([1, 12])).tolist()
    [[0, 1, 5], [0, 4, 16]]

    Attributes:
        size: Number of values, D: items 1 to D.
        branching: Number of children of a node, by level from the root down; at least 2 each. Their
            product is at least D; leaves beyond D are never raised, but have cells and noise.
    """

    size: int
    branching: tuple[int, ...]

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"'size' is {self.size!r}; expected an integer of at least 1")
        if not self.branching or any(type(b) is not int or b < 2 for b in self.branching):
            raise ValueError(f"'branching' is {self.branching}; expected integers of at least 2")
        if self.leaves < self.size:
            raise ValueError(
                f"branching {self.branching} has {self.leaves} leaves; expected at least "
                f"{self.size}"
            )

    @property
    def leaves(self) -> int:
        return math.prod(self.branching)

    @property
    def widths(self) -> tuple[int, ...]:
        """Number of neighboring values in a node of each level, from the root down to 1."""
        return tuple(self.leaves // nodes for nodes in self.nodes)

    @property
    def nodes(self) -> tuple[int, ...]:
        """Number of nodes on each level, from the root down."""
        return tuple(accumulate(self.branching, mul, initial=1))

    @property
    def cells(self) -> int:
        return sum(self.nodes)

    @property
    def messages(self) -> int:
        return len(self.branching) + 1

    @property
    def shared(self) -> int:
        return 1

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        check_items(items, self.size)
        offsets = np.array([0, *accumulate(self.nodes[:-1])], np.int64)
        return offsets + (items[:, None] - 1) // np.array(self.widths, np.int64)

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "size": self.size, "branching": list(self.branching)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        if body["kind"] != KIND:
            raise ValueError(f"'kind' is {body['kind']!r}; expected {KIND!r}")
        return cls(body["size"], tuple(body["branching"]))


def check_items(items: NDArray[np.int64], size: int) -> None:
    if len(items) and (items.min() < 1 or items.max() > size):
        wrong = items[(items < 1) | (items > size)][0]
        raise ValueError(f"item {wrong} is out of range; expected 1 to {size}")
