"""Public matrices of -1, 0 and 1 that define what a device measures of its item.

A measurement is a row. A device with item x has the entry of the row in column x. A matrix derives
from a text: no party has to be trusted to have drawn it, and anyone can compute it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.pairwise_hash import PairwiseHash

_WORD_BYTES = 8


def public_words(text: str, count: int) -> NDArray[np.uint64]:
    """Return the words derived from a text: uint64, shape (count,). No secret depends on them.

    >>> public_words("example", 2).tolist()
    [1337537168300301344, 5322710968205388336]
    """
    digest = hashlib.shake_256(text.encode()).digest(_WORD_BYTES * count)
    return np.frombuffer(digest, "<u8").astype(np.uint64)


class PublicMatrix(ABC):
    """Matrix with a column for every item from 1, and a zero column for "no item"."""

    __slots__ = ()

    @property
    @abstractmethod
    def measurements(self) -> int:
        """M, number of rows."""

    @property
    @abstractmethod
    def filled(self) -> int:
        """W, number of non-zero entries of a column, equal for all items."""

    @abstractmethod
    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return columns, int8, shape (items, measurements); zeros for item 0."""

    def entries_at(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return one entry of the column of each item: int8, shape (items,)."""
        return self.entries(items)[np.arange(len(items)), rows]

    def moved(self, *, removal: bool) -> tuple[tuple[int, int], ...]:
        """Return bounds on how neighbors differ: the number of measurements, and each one's change.

        With `removal`, neighbors are an item and none, otherwise any two items.
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
        """Return the bounds: a cell loses the user, and another one gains the user."""
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
    """A count-sketch with bit tests: a row per bucket, and a test per bit of an item.

    Item x with the sign g(x) raises its bucket h(x) by g(x), and the test of every bit there by
    g(x) or, if the bit is set, by -g(x). Where one item dominates a bucket, the signs of the tests
    are its bits. `seed` is public text that defines h and g.

    >>> SignedBuckets(items=3, buckets=1, seed="example").entries(np.array([0, 1, 2, 3])).tolist()
    [[0, 0, 0], [1, -1, 1], [1, 1, -1], [-1, 1, 1]]
    """

    items: int
    buckets: int
    seed: str

    @property
    def filled(self) -> int:
        """The bucket of the item, and its tests."""
        return 1 + self.items.bit_length()

    @property
    def measurements(self) -> int:
        return self.buckets * self.filled

    def buckets_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return h, int64, same shape, from 0."""
        return PairwiseHash.of(f"{self.seed} bucket").buckets(items, self.buckets)

    def signs_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return g, int64, same shape, -1 or 1."""
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
    """Return the size of the least Sylvester-Hadamard matrix with a column for each item, from 1.

    >>> size_for(1), size_for(2), size_for(4)
    (2, 4, 8)
    """
    return 1 << items.bit_length()


@lru_cache(maxsize=8)
def distinct_rows(text: str, items: int, count: int) -> ParityRows:
    """Choose `count` different rows at random; all rows if there are fewer."""
    size = size_for(items)
    order = np.argsort(public_words(text, size), kind="stable")
    return ParityRows(np.sort(order[:count]).astype(np.int64))


@lru_cache(maxsize=8)
def nonzero_rows(text: str, items: int, count: int) -> ParityRows:
    """Draw `count` independent rows other than row 0."""
    others = np.uint64(size_for(items) - 1)
    return ParityRows((public_words(text, count) % others).astype(np.int64) + 1)
