"""The dyadic tree of a horizon: counts of positive and negative signs for every interval.

Node (h, j) is the interval of order h and index j (`randomizers.dyadic`), complete at the epoch
j 2^h. Nodes are numbered by the epoch of their completion, then by order::

    epoch        1   2     3   4        5 ...
    orders       0   0 1   0   0 1 2    0 ...
    node number  0   1 2   3   4 5 6    7 ...

so the nodes of one epoch lie together, and the tree needs room for the epochs so far only, whatever
the horizon: 2t - 1 nodes at most for t epochs.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

COUNT_CAP = 2**53
"""Largest count read from bytes: sums of hundreds of them still fit 64 bits."""

_ROW = np.dtype([("node", "<u8"), ("negative", "<i8"), ("positive", "<i8")])


def first_node(epoch: int) -> int:
    """Number of the first node that is complete at an epoch, the one of order 0.

    >>> [first_node(epoch) for epoch in (1, 2, 3, 4, 5)]
    [0, 1, 3, 4, 7]
    """
    return 2 * (epoch - 1) - (epoch - 1).bit_count()


class DyadicTree:
    """Counts of signs, int64, of every node of a horizon.

    Args:
        horizon: number of epochs, a power of two.
    """

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self._counts = np.zeros((1, 2), np.int64)

    def add(self, epoch: int, counts: NDArray[np.int64]) -> None:
        """Add the counts of the nodes that are complete at an epoch.

        Args:
            epoch: 1 to the horizon.
            counts: shape (orders due, 2), by order: negative signs, positive signs.
        """
        start = first_node(epoch)
        self._reach(start + len(counts))
        self._counts[start : start + len(counts)] += counts

    def node(self, order: int, index: int) -> tuple[int, int]:
        """How many (negative, positive) signs a node has received."""
        number = first_node(index << order) + order
        if number >= len(self._counts):
            return 0, 0
        negative, positive = self._counts[number].tolist()
        return negative, positive

    def order_counts(self, order: int, last_epoch: int) -> NDArray[np.int64]:
        """All nodes of an order that are complete by an epoch, shape (last_epoch >> order, 2)."""
        boundaries = np.arange(1, (last_epoch >> order) + 1) << order
        numbers = 2 * (boundaries - 1) - np.bitwise_count(boundaries - 1) + order
        counts = np.zeros((len(numbers), 2), np.int64)
        held = int(np.searchsorted(numbers, len(self._counts)))
        counts[:held] = self._counts[numbers[:held]]
        return counts

    def merge(self, other: Self) -> None:
        """Add another tree of the same horizon."""
        self._reach(len(other._counts))
        self._counts[: len(other._counts)] += other._counts

    def to_bytes(self) -> bytes:
        """The nodes that have counts: node number (u8), negative and positive signs (i8 each)."""
        nodes = np.flatnonzero(self._counts.any(axis=1))
        rows = np.empty(len(nodes), _ROW)
        rows["node"] = nodes
        rows["negative"], rows["positive"] = self._counts[nodes].T
        return rows.tobytes()

    @classmethod
    def from_bytes(cls, horizon: int, data: bytes) -> Self:
        """Read `to_bytes`.

        Raises:
            ValueError: the bytes are no tree of this horizon.
        """
        if len(data) % _ROW.itemsize:
            raise ValueError(f"a tree of {len(data)} bytes, nodes take {_ROW.itemsize} bytes each")
        rows = np.frombuffer(data, _ROW)
        nodes, signs = rows["node"], np.stack([rows["negative"], rows["positive"]], axis=1)
        tree = cls(horizon)
        if not len(rows):
            return tree
        if (nodes[1:] <= nodes[:-1]).any():
            raise ValueError("the nodes of a tree do not strictly increase")
        if int(nodes[-1]) > 2 * horizon - 2:
            raise ValueError(
                f"node {nodes[-1]}, a horizon of {horizon} epochs has {2 * horizon - 1} nodes"
            )
        if (signs < 0).any() or (signs > COUNT_CAP).any() or not signs.any(axis=1).all():
            raise ValueError("counts of a tree must be from 0 to 2^53, and not both 0")
        tree._reach(int(nodes[-1]) + 1)
        tree._counts[nodes.astype(np.int64)] = signs
        return tree

    def _reach(self, nodes: int) -> None:
        """Make room for this many nodes; doubling keeps the copying linear."""
        if nodes > len(self._counts):
            room = min(max(nodes, 2 * len(self._counts)), 2 * self.horizon - 1)
            grown = np.zeros((room, 2), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
