"""Count how often each message occurs if a table of all possible messages would be too large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

_ROWS_BYTES = 8
# Counts have the narrowest type that fits the largest one.
_COUNTS = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_COUNT_CAP = 1 << 53
_ROWS_WAITING = 1 << 16
_CELLS_A_ROW = 2
"""Maximum cells per row with which a table is faster than sorting and needs no more memory."""

Messages: TypeAlias = NDArray[np.unsignedinteger]
Counted: TypeAlias = tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]


class MessageCounts:
    """A sorted and counted multiset of unsigned little-endian messages; additions are batched.

    Until read, input in increasing order takes no more memory than its bytes.

    >>> received = MessageCounts(np.dtype("<u4"))
    >>> received.add(np.array([7, 5, 7], np.uint32), None)
    >>> received.words.tolist(), received.counts.tolist()
    ([5, 7], [1, 2])
    """

    def __init__(self, dtype: np.dtype[np.unsignedinteger]) -> None:
        self._dtype = dtype
        self._words: NDArray[np.unsignedinteger] = np.zeros(0, dtype)
        self._counts: NDArray[np.integer] = np.zeros(0, np.int64)
        self._plain: list[NDArray[np.unsignedinteger]] = []
        self._counted: list[tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]] = []
        self._rows_waiting = 0
        # Chunks in increasing order, with counts as narrow as possible.
        self._rising: list[tuple[NDArray[np.unsignedinteger], NDArray[np.integer]]] = []

    @property
    def words(self) -> NDArray[np.unsignedinteger]:
        """All distinct messages, ascending; shape (rows,)."""
        self._sort()
        return self._words

    @property
    def counts(self) -> NDArray[np.int64]:
        """Multiplicity of each of `words`, at least 1; int64, shape (rows,)."""
        self._sort()
        counts = self._counts.astype(np.int64, copy=False)
        self._counts = counts
        return counts

    @property
    def messages(self) -> int:
        return int(self.counts.sum())

    def add(
        self,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.integer] | None,
    ) -> None:
        """Add messages, shape (n,), with multiplicities `counts`; None means 1 each."""
        if self._continues_sorted(words):
            self._append(words.astype(self._dtype), counts)
            return
        if counts is None:
            self._plain.append(words.astype(self._dtype))
        else:
            self._counted.append((words.astype(self._dtype), counts.astype(np.int64)))
        self._rows_waiting += len(words)
        if self._rows_waiting > _ROWS_WAITING + len(self._words):
            self._sort()

    def merge(self, other: MessageCounts) -> None:
        self.add(other.words, other.counts)

    def to_bytes(self) -> bytes:
        """Serialize the row count (uint64), bytes per count (uint8), messages and counts."""
        return b"".join(self.buffers())

    def buffers(self) -> Iterator[bytes | memoryview]:
        """Yield the result of `to_bytes` in pieces, without copying large arrays."""
        if not self._only_rises:
            self._sort()
        parts = self._rising or [(self._words, self._counts)]
        largest = max((int(counts.max(initial=0)) for _, counts in parts), default=0)
        size = _narrowest(largest).itemsize
        rows = sum(len(words) for words, _ in parts)
        yield rows.to_bytes(_ROWS_BYTES, "little") + bytes([size])
        for words, _ in parts:
            yield words.data
        for _, counts in parts:
            yield counts.astype(_COUNTS[size], copy=False).data

    @classmethod
    def from_bytes(
        cls, dtype: np.dtype[np.unsignedinteger], data: bytes, start: int
    ) -> tuple[Self, int]:
        """Return counts serialized at `start`, and their end; raise `ValueError` if malformed."""
        begin = start + _ROWS_BYTES + 1
        if begin > len(data) or data[begin - 1] not in _COUNTS:
            raise ValueError(f"message counts are malformed at byte {start} of {len(data)}")
        rows, counted = int.from_bytes(data[start : begin - 1], "little"), _COUNTS[data[begin - 1]]
        middle = begin + rows * dtype.itemsize
        end = middle + rows * counted.itemsize
        if end > len(data):
            raise ValueError(f"message counts end at byte {len(data)}; expected {end} bytes")
        words = np.frombuffer(data, dtype, rows, begin)
        counts = np.frombuffer(data, counted, rows, middle)
        if (words[1:] <= words[:-1]).any():
            raise ValueError("messages are out of order; expected strictly increasing messages")
        if (counts < 1).any() or (counts > _COUNT_CAP).any():
            raise ValueError("the count of a message is out of range; expected 1 to 2^53")
        received = cls(dtype)
        received._words, received._counts = words, counts
        return received, end

    @property
    def _only_rises(self) -> bool:
        return not self._rows_waiting and not len(self._words)

    def _continues_sorted(self, words: NDArray[np.unsignedinteger]) -> bool:
        """Return whether messages are in increasing order and none precedes a stored one."""
        if not self._only_rises or not len(words) or (words[1:] < words[:-1]).any():
            return False
        return not self._rising or bool(words[0] >= self._rising[-1][0][-1])

    def _append(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.integer] | None
    ) -> None:
        starts = _starts(words)
        times = (
            np.diff(starts, append=len(words))
            if counts is None
            else np.add.reduceat(counts.astype(np.int64), starts)
        )
        words = words[starts]
        if self._rising and words[0] == self._rising[-1][0][-1]:
            # The last message of one chunk is the first of the next.
            before, counted = self._rising[-1]
            total = int(counted[-1]) + int(times[0])
            if total > np.iinfo(counted.dtype).max:
                counted = counted.astype(_narrowest(total))
            counted[-1] = total
            self._rising[-1] = before, counted
            words, times = words[1:], times[1:]
        if len(words):
            self._rising.append((words, times.astype(_narrowest(int(times.max())))))

    def _sort(self) -> None:
        if self._rising:
            self._words = np.concatenate([words for words, _ in self._rising])
            self._counts = np.concatenate([counts for _, counts in self._rising])
            self._rising = []
        if not self._rows_waiting:
            return
        plain = np.concatenate([self._words[:0], *self._plain])
        counted = [(self._words, self._counts.astype(np.int64, copy=False)), *self._counted]
        cells = 1 + max(int(words.max(initial=0)) for words in (plain, *(w for w, _ in counted)))
        if cells <= _CELLS_A_ROW * (len(self._words) + self._rows_waiting):
            self._words, self._counts = _counted_in_table(cells, plain, counted, self._dtype)
        else:
            self._words, self._counts = _counted_in_order(plain, counted)
        self._plain, self._counted, self._rows_waiting = [], [], 0


def _counted_in_table(
    cells: int, plain: Messages, counted: Sequence[Counted], dtype: np.dtype[np.unsignedinteger]
) -> Counted:
    """Count distinct messages in a table of all messages.

    The first element of `counted` has distinct messages; other elements can repeat them.
    """
    table = np.bincount(plain.astype(np.intp, copy=False), minlength=cells)
    (held, times), *others = counted
    # Each stored message occurs once.
    table[held] += times
    for words, counts in others:
        np.add.at(table, words.astype(np.intp, copy=False), counts)
    found = np.flatnonzero(table)
    return found.astype(dtype), table[found]


def _counted_in_order(plain: Messages, counted: Sequence[Counted]) -> Counted:
    # Most messages occur once: sorting before counting takes a fifth of the time.
    plain = np.sort(plain)
    starts = _starts(plain)
    once = plain[starts], np.diff(starts, append=len(plain))
    parts = [*counted, once]
    words = np.concatenate([words for words, _ in parts])
    counts = np.concatenate([counts for _, counts in parts])
    # A stable sort merges sorted chunks.
    order = np.argsort(words, kind="stable")
    words, counts = words[order], counts[order]
    starts = _starts(words)
    return words[starts], np.add.reduceat(counts, starts)


def _narrowest(largest: int) -> np.dtype[np.unsignedinteger]:
    return next(dtype for size, dtype in _COUNTS.items() if largest < 1 << 8 * size)


def _starts(words: NDArray[np.unsignedinteger]) -> NDArray[np.intp]:
    """Return the position where each distinct message first occurs in sorted messages."""
    first = np.ones(len(words), np.bool_)
    first[1:] = words[1:] != words[:-1]
    return np.flatnonzero(first)
