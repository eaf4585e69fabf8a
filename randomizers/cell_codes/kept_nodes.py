"""Tree over ordered values in which only the root and the left children have cells.

Of a tree with B leaves, B nodes are kept; the counts of all other nodes follow from theirs.
Numbered by their last leaf, the kept nodes form a Fenwick tree: node j covers the lowbit(j) items
up to j, where lowbit(j) is the lowest set bit of j. Repeatedly adding the lowest set bit to an
item's number yields the nodes of the item. Repeatedly subtracting it from j yields the nodes that
sum to the items 1 to j, for any number of leaves.

Reference: Ghazi et al., *On the Power of Multiple Anonymous Messages*, 2019, Section 5.3.
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
"""Placeholder in the rows of items that have fewer cells than others."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """The root and the left children of a binary tree.

    `size` is B, for items 1 to B. Node counts are consistent only if a user has at most one item.

    >>> kept = KeptNodes(8)
    >>> kept.encode(np.array([1, 4, 7, 8])).tolist()  # cell j - 1 is that of node j
    [[0, 1, 3, 7], [3, 7, -1, -1], [6, 7, -1, -1], [7, -1, -1, -1]]
    """

    size: int

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"'size' is {self.size!r}; expected an integer of at least 1")

    @property
    def cells(self) -> int:
        return self.size

    @property
    def messages(self) -> int:
        return self.size.bit_length()

    @property
    def shared(self) -> int:
        """1 if the size is a power of two, so that all items raise the root; otherwise 0."""
        return int(self.size.bit_count() == 1)

    def encode(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        check_items(items, self.size)
        cells = np.empty((len(items), self.messages), np.int64)
        node = items.copy()
        for column in cells.T:
            column[:] = np.where(node <= self.size, node - 1, NONE)
            node += node & -node
        return cells

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, "size": self.size}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        if body["kind"] != KIND:
            raise ValueError(f"'kind' is {body['kind']!r}; expected {KIND!r}")
        return cls(body["size"])
