"""The tree of the paper over ordered values: only the root and the left children have cells.

Section 5.3 of "On the Power of Multiple Anonymous Messages" (Ghazi, Golowich, Kumar, Pagh,
Velingker 2019). Over B leaves, B nodes are kept, and all others follow from them. Numbered by the
leaf that they end with, they are a Fenwick tree: node j holds the values of the items from j less
the lowest bit of j, exclusive, to j. So the nodes of an item are found by adding lowest bits, and
those that make up the items 1 to j by taking them away, for any number of leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.cell_codes.levels import check_items

KIND = "kept_nodes"
NONE = -1
"""Stands where an item has fewer cells than others."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """The root and the left children of a binary tree.

    Counts of nodes add up only if a user holds at most one item.

    >>> kept = KeptNodes(8)
    >>> kept.encode(np.array([1, 4, 7, 8])).tolist()  # cell j - 1 is that of node j
    [[0, 1, 3, 7], [3, 7, -1, -1], [6, 7, -1, -1], [7, -1, -1, -1]]

    Attributes:
        size: B, how many values there are: the items 1 to B.

    Raises:
        ValueError: the size is not at least 1.
    """

    size: int

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"size is {self.size!r}, must be a whole number, at least 1")

    @property
    def cells(self) -> int:
        """How many cells there are."""
        return self.size

    @property
    def messages(self) -> int:
        """The most cells of an item, 1 + log2 of the size, rounded down."""
        return self.size.bit_length()

    @property
    def shared(self) -> int:
        """How many cells are raised by every item: the root, where the size is a power of two."""
        return int(self.size.bit_count() == 1)

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The cells of items.

        Args:
            items: int64, shape (items,), from 1 to `size`.

        Returns:
            int64, shape (items, messages): the cells of their kept ancestors from the leaf up, and
            `NONE` after the last one.

        Raises:
            ValueError: there is no such item.
        """
        check_items(items, self.size)
        cells = np.empty((len(items), self.messages), np.int64)
        node = items.copy()
        for column in cells.T:
            column[:] = np.where(node <= self.size, node - 1, NONE)
            node += node & -node
        return cells

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return {"kind": KIND, "size": self.size}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read `to_json`.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        if body["kind"] != KIND:
            raise ValueError(f"kind is {body['kind']!r}, must be {KIND!r}")
        return cls(body["size"])
