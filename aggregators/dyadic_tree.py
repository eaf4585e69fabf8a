"""The dyadic tree of a horizon: counts of received reports for every interval.

Node (h, j) is the interval of order h and index j (`dpstream.randomizers.dyadic`). It is complete
at epoch j 2^h. The protocol defines the cells of a node. Serialization numbers nodes by the epoch
that completes them, then by order::

    epoch        1   2     3   4        5 ...
    orders       0   0 1   0   0 1 2    0 ...
    node number  0   1 2   3   4 5 6    7 ...
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import lt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.dyadic import orders_due

COUNT_CAP = 2**53
"""Largest count accepted in serialized state: sums of hundreds of such counts fit in 64 bits."""

_ENTRY = np.dtype([("cell", "<u8"), ("count", "<i8")])
_FEW_BYTES = 64 * _ENTRY.itemsize


def first_node(epoch: int) -> int:
    """Return the number of the node of order 0 that an epoch completes.

    >>> [first_node(epoch) for epoch in (1, 2, 3, 4, 5)]
    [0, 1, 3, 4, 7]
    """
    return 2 * (epoch - 1) - (epoch - 1).bit_count()


class DyadicTree:
    """Sparse int64 counts for every cell of every node of a horizon, a power of two of epochs.

    >>> tree = DyadicTree(horizon=4, cells=2)
    >>> tree.add(2, np.array([[3, 1], [0, 5]]))
    >>> tree.node(order=1, index=1).tolist(), tree.node(order=0, index=1).tolist()
    ([0, 5], [0, 0])
    """

    def __init__(self, horizon: int, cells: int) -> None:
        self.horizon = horizon
        self.cells = cells
        self._nodes_due: dict[int, NDArray[np.int64]] = {}

    @property
    def epochs(self) -> tuple[int, ...]:
        return tuple(sorted(self._nodes_due))

    @property
    def first_epoch(self) -> int:
        """The first epoch with counts, or horizon + 1 for an empty tree."""
        return min(self._nodes_due, default=self.horizon + 1)

    def add(self, epoch: int, counts: NDArray[np.int64]) -> None:
        """Add counts, shape (orders due, cells), to the nodes that an epoch completes."""
        held = self._nodes_due.get(epoch)
        if held is not None:
            held += counts
        elif counts.any():
            self._nodes_due[epoch] = counts.astype(np.int64)

    def nodes_due(self, epoch: int) -> NDArray[np.int64]:
        """Return the counts of the nodes that an epoch completes, shape (orders due, cells)."""
        held = self._nodes_due.get(epoch)
        return np.zeros((orders_due(epoch), self.cells), np.int64) if held is None else held

    def node(self, order: int, index: int) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = self.nodes_due(index << order)[order]
        return counts

    def order_counts(self, order: int, last_epoch: int) -> NDArray[np.int64]:
        """Return an order's counts up to an epoch, shape (last_epoch >> order, cells)."""
        counts = np.zeros((last_epoch >> order, self.cells), np.int64)
        for index in range(1, len(counts) + 1):
            held = self._nodes_due.get(index << order)
            if held is not None:
                counts[index - 1] = held[order]
        return counts

    def merge(self, other: Self) -> None:
        for epoch, counts in other._nodes_due.items():
            self.add(epoch, counts)

    def to_bytes(self) -> bytes:
        """Serialize each nonzero count: node number * cells + cell (uint64), count (int64)."""
        parts = [np.zeros(0, _ENTRY)]
        for epoch in self.epochs:
            flat = self._nodes_due[epoch].ravel()
            cells = np.flatnonzero(flat)
            entries = np.empty(len(cells), _ENTRY)
            entries["cell"] = cells + first_node(epoch) * self.cells
            entries["count"] = flat[cells]
            parts.append(entries)
        return np.concatenate(parts).tobytes()

    @classmethod
    def from_bytes(cls, horizon: int, cells: int, data: bytes) -> Self:
        # Arrays are several times slower for the few counts of a single window.
        if 0 < len(data) <= _FEW_BYTES and len(data) % _ENTRY.itemsize == 0:
            tree = cls(horizon, cells)
            if tree._take_few(struct.unpack(f"<{len(data) // 8}q", data)):
                return tree
        if len(data) % _ENTRY.itemsize:
            raise ValueError(
                f"tree state is {len(data)} bytes long; expected a multiple of {_ENTRY.itemsize}"
            )
        entries = np.frombuffer(data, _ENTRY)
        positions, counts = entries["cell"], entries["count"]
        tree = cls(horizon, cells)
        if not len(entries):
            return tree
        if (positions[1:] <= positions[:-1]).any():
            raise ValueError("tree cells are out of order; expected strictly increasing numbers")
        if int(positions[-1]) >= (2 * horizon - 1) * cells:
            raise ValueError(
                f"cell {positions[-1]} is out of range: a horizon of {horizon} epochs has "
                f"{2 * horizon - 1} nodes with {cells} cells each"
            )
        if (counts < 1).any() or (counts > COUNT_CAP).any():
            raise ValueError("a count in a tree is out of range; expected 1 to 2^53")
        positions = positions.astype(np.int64)
        start = 0
        while start < len(positions):
            epoch = _epoch_of(int(positions[start]) // cells)
            first, due = first_node(epoch) * cells, orders_due(epoch)
            end = int(np.searchsorted(positions, first + due * cells))
            held = np.zeros(due * cells, np.int64)
            held[positions[start:end] - first] = counts[start:end]
            tree._nodes_due[epoch] = held.reshape(due, cells)
            start = end
        return tree

    def _take_few(self, numbers: Sequence[int]) -> bool:
        """Store the counts of one epoch, if valid; return whether they were stored.

        `numbers` alternates cells and counts; cells of at least 2^63 appear as negative numbers.
        """
        cells, counts = numbers[::2], numbers[1::2]
        if cells[0] < 0 or min(counts) < 1 or max(counts) > COUNT_CAP:
            return False
        if not all(map(lt, cells, cells[1:])) or cells[-1] >= (2 * self.horizon - 1) * self.cells:
            return False
        epoch = _epoch_of(cells[0] // self.cells)
        first, due = first_node(epoch) * self.cells, orders_due(epoch)
        if cells[-1] >= first + due * self.cells:
            return False
        held = [0] * (due * self.cells)
        for cell, count in zip(cells, counts, strict=True):
            held[cell - first] = count
        self._nodes_due[epoch] = np.array(held, np.int64).reshape(due, self.cells)
        return True


def _epoch_of(node: int) -> int:
    """Return the last epoch e with `first_node(e)` <= `node`."""
    epoch = node // 2 + 1
    while first_node(epoch + 1) <= node:
        epoch += 1
    return epoch
