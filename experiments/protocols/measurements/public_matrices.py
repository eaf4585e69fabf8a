"""Public matrices of -1, 0 and 1 that define what a device measures about its item.

Each row is a measurement: a device with item x measures the entry in column x. A matrix is derived
from a text: no party has to be trusted to choose it at random, and anyone can compute it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.pairwise_hash import PairwiseHash, public_words


class PublicMatrix(ABC):
    """Matrix with a column for every item from 1, and a zero column for "no item"."""

    __slots__ = ()

    @property
    @abstractmethod
    def measurements(self) -> int:
        """M, the number of rows."""

    @property
    @abstractmethod
    def filled(self) -> int:
        """W, the number of non-zero entries of a column, the same for all items."""

    @abstractmethod
    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the columns of items: int8, shape (items, measurements); zeros for item 0."""

    def entries_at(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return each item's entry in its row of `rows`: int8, shape (items,)."""
        return self.entries(items)[np.arange(len(items)), rows]

    def moved(self, *, removal: bool) -> tuple[tuple[int, int], ...]:
        """Return bounds on how neighbors differ: pairs (number of measurements, change of each).

        With `removal`, neighbors are an item and no item; otherwise any two items.
        """
        if removal:
            return ((self.filled, 1),)
        apart = min(2 * self.filled, self.measurements)
        return ((apart, 1), (self.filled, 2))


@dataclass(frozen=True, slots=True)
class OneHot(PublicMatrix):
    """Histogram: a row for every item."""

    items: int

    @property
    def measurements(self) -> int:
        return self.items

    @property
    def filled(self) -> int:
        return 1

    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        columns = np.zeros((len(items), self.items + 1), np.int8)
        columns[np.arange(len(items)), items] = 1
        return columns[:, 1:]

    def moved(self, *, removal: bool) -> tuple[tuple[int, int], ...]:
        return ((1 if removal else min(2, self.items), 1),)


@dataclass(frozen=True, slots=True, eq=False)
class ParityRows(PublicMatrix):
    """Entries (-1)^popcount(r & x): selected rows r of a Sylvester-Hadamard matrix.

    Items are numbered from 1: item 0 would be +1 in all rows.

    >>> ParityRows(np.array([1, 2])).entries(np.array([0, 1, 2])).tolist()
    [[0, 0], [-1, 1], [1, -1]]
    """

    rows: NDArray[np.int64]

    @property
    def measurements(self) -> int:
        return len(self.rows)

    @property
    def filled(self) -> int:
        return len(self.rows)

    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        return _signs(self.rows & items[:, None], items[:, None])

    def entries_at(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int8]:
        return _signs(self.rows[rows] & items, items)


@dataclass(frozen=True, slots=True)
class SignedBuckets(PublicMatrix):
    """A count sketch with bit tests: a bucket has one row, and a test row for each bit of an item.

    Item x with the sign g(x) adds g(x) to its bucket h(x). To each test of that bucket it adds
    g(x), or -g(x) if the bit is set. If one item dominates a bucket, the signs of the tests reveal
    its bits. `seed` is public text that defines h and g.

    >>> SignedBuckets(items=3, buckets=1, seed="example").entries(np.array([0, 1, 2, 3])).tolist()
    [[0, 0, 0], [1, -1, 1], [1, 1, -1], [-1, 1, 1]]
    """

    items: int
    buckets: int
    seed: str

    @property
    def filled(self) -> int:
        """Number of rows of a bucket: one for the bucket itself, and its tests."""
        return 1 + self.items.bit_length()

    @property
    def measurements(self) -> int:
        return self.buckets * self.filled

    def buckets_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return h, the bucket of each item: int64, same shape, from 0."""
        return PairwiseHash.of(f"{self.seed} bucket").buckets(items, self.buckets)

    def signs_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return g, the sign of each item: int64, same shape, -1 or 1."""
        return 1 - 2 * PairwiseHash.of(f"{self.seed} sign").buckets(items, 2)

    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return columns in which the rows of a bucket are contiguous."""
        bits = items[:, None] >> np.arange(self.filled - 1) & 1
        tests = np.concatenate([np.ones((len(items), 1), np.int64), 1 - 2 * bits], axis=1)
        tests *= np.where(items == 0, 0, self.signs_of(items))[:, None]
        columns = np.zeros((len(items), self.buckets, self.filled), np.int8)
        columns[np.arange(len(items)), self.buckets_of(items)] = tests
        return columns.reshape(len(items), self.measurements)


def _signs(common: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int8]:
    odd = (np.bitwise_count(common) & 1).astype(np.int8)
    return np.where(items == 0, np.int8(0), np.int8(1) - 2 * odd)


def size_for(items: int) -> int:
    """Return the size of the smallest Sylvester-Hadamard matrix with columns 1 to `items`.

    >>> size_for(1), size_for(2), size_for(4)
    (2, 4, 8)
    """
    return 1 << items.bit_length()


@lru_cache(maxsize=8)
def distinct_rows(text: str, items: int, count: int) -> ParityRows:
    """Derive `count` distinct rows from a text; all rows if there are fewer."""
    size = size_for(items)
    order = np.argsort(public_words(text, size), kind="stable")
    return ParityRows(np.sort(order[:count]).astype(np.int64))


@lru_cache(maxsize=8)
def nonzero_rows(text: str, items: int, count: int) -> ParityRows:
    """Derive `count` independent rows other than row 0 from a text."""
    others = np.uint64(size_for(items) - 1)
    return ParityRows((public_words(text, count) % others).astype(np.int64) + 1)
