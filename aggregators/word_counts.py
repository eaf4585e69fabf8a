"""How often each word was received, where there are too many different ones for a table."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

_ROWS_BYTES = 8
# Counts are as narrow as the largest allows.
_COUNTS = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_COUNT_CAP = 1 << 53
_ROWS_WAITING = 1 << 16


class WordCounts:
    """A multiset of words, sorted and counted. What is added waits until there is as much of it.

    >>> received = WordCounts(np.dtype("<u4"))
    >>> received.add(np.array([7, 5, 7], np.uint32), None)
    >>> received.words.tolist(), received.counts.tolist()
    ([5, 7], [1, 2])

    Args:
        dtype: of the words, unsigned and little-endian.
    """

    def __init__(self, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._dtype = dtype
        self._words: NDArray[np.unsignedinteger] = np.zeros(0, dtype)
        self._counts = np.zeros(0, np.int64)
        self._plain: list[NDArray[np.unsignedinteger]] = []
        self._counted: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]] = []
        self._rows_waiting = 0

    @property
    def words(self) -> NDArray[np.unsignedinteger]:
        """All different ones, ascending; shape (rows,)."""
        self._sort()
        return self._words

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `words` was received, at least once; int64, shape (rows,)."""
        self._sort()
        return self._counts

    @property
    def messages(self) -> int:
        """How many words were received."""
        return int(self.counts.sum())

    def add(
        self,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.integer] | None,
    ) -> None:
        """Add words, shape (n,), each once or as often as `counts`, shape (n,), says."""
        if counts is None:
            self._plain.append(words.astype(self._dtype))
        else:
            self._counted.append((words.astype(self._dtype), counts.astype(np.int64)))
        self._rows_waiting += len(words)
        if self._rows_waiting > _ROWS_WAITING + len(self._words):
            self._sort()

    def merge(self, other: WordCounts) -> None:
        """Add what was added to another one."""
        self.add(other.words, other.counts)

    def to_bytes(self) -> bytes:
        """Rows (u8), bytes of a count (u1), the words, and their counts."""
        largest = int(self.counts.max(initial=0))
        size = next(size for size in _COUNTS if largest < 1 << 8 * size)
        header = len(self.words).to_bytes(_ROWS_BYTES, "little") + bytes([size])
        return header + self.words.tobytes() + self.counts.astype(_COUNTS[size]).tobytes()

    @classmethod
    def from_bytes(
        cls, dtype: np.dtype[np.unsignedinteger], data: bytes, start: int
    ) -> tuple[Self, int]:
        """Read `to_bytes` at a position; also where it ends.

        Raises:
            ValueError: the bytes are something else.
        """
        begin = start + _ROWS_BYTES + 1
        if begin > len(data) or data[begin - 1] not in _COUNTS:
            raise ValueError(f"{len(data)} bytes are no counts of words: look at byte {start}")
        rows, counted = int.from_bytes(data[start : begin - 1], "little"), _COUNTS[data[begin - 1]]
        middle = begin + rows * dtype.itemsize
        end = middle + rows * counted.itemsize
        if end > len(data):
            raise ValueError(f"counts of {len(data)} bytes end before byte {end}")
        words = np.frombuffer(data[begin:middle], dtype)
        counts = np.frombuffer(data[middle:end], counted)
        if (words[1:] <= words[:-1]).any():
            raise ValueError("counted words do not strictly increase")
        if (counts < 1).any() or (counts > _COUNT_CAP).any():
            raise ValueError("the count of a word must be from 1 to 2^53")
        received = cls(dtype)
        received._words, received._counts = words, counts.astype(np.int64)
        return received, end

    def _sort(self) -> None:
        if not self._rows_waiting:
            return
        # Most words come once: sorted before they are counted, they take a fifth of the time.
        plain = np.sort(np.concatenate([self._words[:0], *self._plain]))
        starts = _starts(plain)
        once = plain[starts], np.diff(starts, append=len(plain))
        parts = [(self._words, self._counts), once, *self._counted]
        words = np.concatenate([words for words, _ in parts])
        counts = np.concatenate([counts for _, counts in parts])
        # Parts that are sorted are merged.
        order = np.argsort(words, kind="stable")
        words, counts = words[order], counts[order]
        starts = _starts(words)
        self._words, self._counts = words[starts], np.add.reduceat(counts, starts)
        self._plain, self._counted, self._rows_waiting = [], [], 0


def _starts(words: NDArray[np.unsignedinteger]) -> NDArray[np.intp]:
    """Where each of some sorted words occurs first."""
    first = np.ones(len(words), np.bool_)
    first[1:] = words[1:] != words[:-1]
    return np.flatnonzero(first)
