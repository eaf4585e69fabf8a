"""Public matrices of -1, 0 and 1: the column of an item is what a device measures of itself.

A measurement is a row, and a device that holds item x has the entry of the row in column x. Nobody
has to be trusted to have drawn a matrix: everybody can make it from a text.
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
    """The words that a text stands for: uint64, shape (count,). No secret rests on them.

    >>> public_words("example", 2).tolist()
    [1337537168300301344, 5322710968205388336]
    """
    digest = hashlib.shake_256(text.encode()).digest(_WORD_BYTES * count)
    return np.frombuffer(digest, "<u8").astype(np.uint64)


class PublicMatrix(ABC):
    """A matrix with a column for every item from 1 on, and one of zeros for "no item"."""

    __slots__ = ()

    @property
    @abstractmethod
    def measurements(self) -> int:
        """M, how many rows there are."""

    @property
    @abstractmethod
    def filled(self) -> int:
        """W, how many entries of a column are not 0: the same number for every item."""

    @abstractmethod
    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """The columns of items, int8, shape (items, measurements); zeros for item 0."""

    def entries_at(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int8]:
        """One entry of the column of each item: int8, shape (items,)."""
        return self.entries(items)[np.arange(len(items)), rows]

    def moved(self, *, removal: bool) -> tuple[tuple[int, int], ...]:
        """How neighbours may differ: in how many measurements, and by how much each, at most.

        Args:
            removal: whether neighbours are an item and none, instead of any two.
        """
        if removal:
            return ((self.filled, 1),)
        apart = min(2 * self.filled, self.measurements)
        return ((apart, 1), (self.filled, 2))


@dataclass(frozen=True, slots=True)
class OneHot(PublicMatrix):
    """A row for every item: a histogram.

    Attributes:
        items: how many there are.
    """

    items: int

    @property
    def measurements(self) -> int:
        """One for each item."""
        return self.items

    @property
    def filled(self) -> int:
        """Its own."""
        return 1

    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """See `PublicMatrix`."""
        columns = np.zeros((len(items), self.items + 1), np.int8)
        columns[np.arange(len(items)), items] = 1
        return columns[:, 1:]

    def moved(self, *, removal: bool) -> tuple[tuple[int, int], ...]:
        """A cell loses the user, and another one has it instead."""
        return ((1 if removal else min(2, self.items), 1),)


@dataclass(frozen=True, slots=True, eq=False)
class ParityRows(PublicMatrix):
    """Entries (-1)^popcount(r & x): chosen rows of a Sylvester-Hadamard matrix.

    Items are numbered from 1: item 0 would be +1 in all of them.

    >>> ParityRows(np.array([1, 2])).entries(np.array([0, 1, 2])).tolist()
    [[0, 0], [-1, 1], [1, -1]]

    Attributes:
        rows: r of each measurement, int64.
    """

    rows: NDArray[np.int64]

    @property
    def measurements(self) -> int:
        """One for each row."""
        return len(self.rows)

    @property
    def filled(self) -> int:
        """All of them."""
        return len(self.rows)

    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """See `PublicMatrix`."""
        return _signs(self.rows & items[:, None], items[:, None])

    def entries_at(self, rows: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int8]:
        """See `PublicMatrix`."""
        return _signs(self.rows[rows] & items, items)


@dataclass(frozen=True, slots=True)
class SignedBuckets(PublicMatrix):
    """A count-sketch with bit tests: one row of buckets, and for each bit of an item a test.

    Item x with the sign g(x) raises its bucket h(x) by g(x), and the test of every bit there by
    g(x) or, if the bit is set, by -g(x). Where one item has most of a bucket, the signs of the
    tests are its bits.

    >>> SignedBuckets(items=3, buckets=1, seed="example").entries(np.array([0, 1, 2, 3])).tolist()
    [[0, 0, 0], [1, -1, 1], [1, 1, -1], [-1, 1, 1]]

    Attributes:
        items: how many there are.
        buckets: how many there are.
        seed: public text from which h and g are made.
    """

    items: int
    buckets: int
    seed: str

    @property
    def filled(self) -> int:
        """Of the item's bucket, and its tests."""
        return 1 + self.items.bit_length()

    @property
    def measurements(self) -> int:
        """Of every bucket as many."""
        return self.buckets * self.filled

    def buckets_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """H, int64 of the same shape, from 0 on."""
        return PairwiseHash.of(f"{self.seed} bucket").buckets(items, self.buckets)

    def signs_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """G, int64 of the same shape, -1 or 1."""
        return 1 - 2 * PairwiseHash.of(f"{self.seed} sign").buckets(items, 2)

    def entries(self, items: NDArray[np.int64]) -> NDArray[np.int8]:
        """See `PublicMatrix`; the rows of a bucket follow each other."""
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
    """Rows of the least Sylvester-Hadamard matrix with a column for each item, from 1 on.

    >>> size_for(1), size_for(2), size_for(4)
    (2, 4, 8)
    """
    return 1 << items.bit_length()


@lru_cache(maxsize=8)
def distinct_rows(text: str, items: int, count: int) -> ParityRows:
    """So many different rows, chosen at random: all of them if there are no more."""
    size = size_for(items)
    order = np.argsort(public_words(text, size), kind="stable")
    return ParityRows(np.sort(order[:count]).astype(np.int64))


@lru_cache(maxsize=8)
def nonzero_rows(text: str, items: int, count: int) -> ParityRows:
    """So many rows other than row 0, each drawn by itself."""
    others = np.uint64(size_for(items) - 1)
    return ParityRows((public_words(text, count) % others).astype(np.int64) + 1)
