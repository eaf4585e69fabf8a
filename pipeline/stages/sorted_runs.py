"""More words than memory is to hold: sorted runs in scratch files, and their merge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from pipeline.stages.scratch import Scratch
from topics.words import WordArray, Words, first_of_equal_rows, sorted_rows

BLOCK_BYTES: Final = 1 << 23
"""What a merge holds of all runs at a time, unless they are so many that reads were tiny."""
_LEAST_READ = 1 << 14
# Files beyond this change hands when runs join others; smaller ones are copied, so that few are
# open however many producers a window has.
_COPIED_BYTES = 1 << 26


@dataclass(slots=True)
class _ScratchFile:
    """Sorted runs, one after the other.

    Attributes:
        file: what holds them.
        run_rows: rows of each.
    """

    file: BinaryIO
    run_rows: list[int] = field(default_factory=list)


class SortedRuns:
    """Rows of words in scratch files, in runs each of which is sorted.

    Args:
        dtype: of the words.
        width: words of a row.
        scratch: opens a scratch file.
    """

    def __init__(self, dtype: np.dtype[np.unsignedinteger], width: int, scratch: Scratch) -> None:
        self._dtype = dtype
        self._width = width
        self._row_bytes = width * dtype.itemsize
        self._scratch = scratch
        self._files: list[_ScratchFile] = []

    @property
    def files(self) -> int:
        """How many scratch files are open."""
        return len(self._files)

    @property
    def rows(self) -> int:
        """How many rows all runs have together."""
        return sum(sum(held.run_rows) for held in self._files)

    def add(self, values: WordArray) -> None:
        """Write rows, in any order, as one more run."""
        if not self._files:
            self._files.append(_ScratchFile(self._scratch()))
        held = self._files[0]
        held.file.seek(0, 2)
        held.file.write(np.ascontiguousarray(sorted_rows(values)).data)
        held.run_rows.append(len(values))

    def take(self, other: SortedRuns) -> None:
        """Take over all runs of another over the same words; it ends empty."""
        for held in other._files:
            if not self._files or sum(held.run_rows) * self._row_bytes > _COPIED_BYTES:
                self._files.append(held)
                continue
            for cursor in self._cursors(held, max(held.run_rows)):
                cursor.refill()
                self.add(cursor.split(None))
            held.file.close()
        other._files = []

    def close(self) -> None:
        """Forget everything and give the scratch files back."""
        for held in self._files:
            held.file.close()
        self._files = []

    def blocks(self) -> Iterator[WordArray]:
        """All rows, a run or a part of it at a time."""
        rows = max(1, BLOCK_BYTES // self._row_bytes)
        for held in self._files:
            for cursor in self._cursors(held, rows):
                while cursor.refill():
                    yield cursor.split(None)

    def distinct(self, others: Iterable[Words]) -> Iterator[Words]:
        """Distinct rows in increasing order with their counts, block by block; nothing is lost.

        Args:
            others: further rows, which are merged with those of the files: distinct ones in
                increasing order, counted.
        """
        runs = max(1, sum(len(held.run_rows) for held in self._files))
        rows = max(1, max(_LEAST_READ, BLOCK_BYTES // runs) // self._row_bytes)
        cursors = [cursor for held in self._files for cursor in self._cursors(held, rows)]
        waiting: _Counted | None = None
        for block in _merged(cursors, [_Counted.of(words) for words in others]):
            values, counts = block.values, block.counts
            if waiting is not None and (values[0] == waiting.values[0]).all():
                counts[0] += waiting.counts[0]
            elif waiting is not None:
                yield Words(waiting.values, waiting.counts)
            # The next block may begin with more of the last row.
            waiting = _Counted(values[-1:], counts[-1:])
            if len(values) > 1:
                yield Words(values[:-1], counts[:-1])
        if waiting is not None:
            yield Words(waiting.values, waiting.counts)

    def _cursors(self, held: _ScratchFile, rows: int) -> Iterator[_Cursor]:
        start = 0
        for count in held.run_rows:
            yield _Cursor(held.file, start, count, rows, self._dtype, self._width)
            start += count * self._row_bytes


@dataclass(slots=True)
class _Counted:
    """Rows in increasing order, each with how often it occurs (uint64)."""

    values: WordArray
    counts: NDArray[np.uint64]

    @classmethod
    def of(cls, words: Words) -> _Counted:
        return cls(words.values, words.occurrences.astype(np.uint64))

    def split(self, limit: Any) -> _Counted:
        """Take away and return the rows up to a key; all of them if it is None."""
        end = len(self.values)
        if limit is not None:
            end = int(np.searchsorted(_keys(self.values), limit, "right"))
        taken = _Counted(self.values[:end], self.counts[:end])
        self.values, self.counts = self.values[end:], self.counts[end:]
        return taken


class _Cursor:
    """What is next of a run in a file: some rows in memory, and where the rest lies."""

    def __init__(
        self,
        file: BinaryIO,
        start: int,
        rows: int,
        rows_at_a_time: int,
        dtype: np.dtype[np.unsignedinteger],
        width: int,
    ) -> None:
        self._file = file
        self._position = start
        self.left = rows
        self._rows_at_a_time = rows_at_a_time
        self._dtype = dtype
        self._width = width
        self.values: WordArray = np.empty((0, width), dtype)

    def refill(self) -> bool:
        """Have rows in memory; False if none are left."""
        if not len(self.values) and self.left:
            rows = min(self.left, self._rows_at_a_time)
            self._file.seek(self._position)
            data = self._file.read(rows * self._width * self._dtype.itemsize)
            self._position += len(data)
            self.left -= rows
            self.values = np.frombuffer(data, self._dtype).reshape(rows, self._width)
        return bool(len(self.values))

    def split(self, limit: Any) -> WordArray:
        """Take away and return the rows in memory up to a key; all of them if it is None."""
        end = len(self.values)
        if limit is not None:
            end = int(np.searchsorted(_keys(self.values), limit, "right"))
        taken, self.values = self.values[:end], self.values[end:]
        return taken


def _merged(cursors: list[_Cursor], others: list[_Counted]) -> Iterator[_Counted]:
    """Distinct rows in increasing order; only the last row of a block may go on in the next."""
    while cursors := [cursor for cursor in cursors if cursor.refill()]:
        # Nothing that is still in a file is below what is in memory of its run.
        limits = [_keys(cursor.values[-1:])[0] for cursor in cursors if cursor.left]
        limit = min(limits, default=None)
        plain = [cursor.split(limit) for cursor in cursors]
        block = _tallied(np.concatenate(plain))
        counted = [each.split(limit) for each in others]
        if any(len(each.values) for each in counted):
            block = _added_up([block, *counted])
        yield block
    if any(len(each.values) for each in others):
        yield _added_up(others)


def _keys(values: WordArray) -> NDArray[Any]:
    """(rows,), what orders and compares as rows do."""
    if values.shape[1] == 1:
        return values[:, 0]
    big_endian = np.ascontiguousarray(values.astype(values.dtype.newbyteorder(">")))
    return big_endian.view(f"S{values.shape[1] * values.itemsize}")[:, 0]


def _tallied(values: WordArray) -> _Counted:
    ordered = sorted_rows(values)
    starts = first_of_equal_rows(ordered)
    return _Counted(ordered[starts], np.diff(starts, append=len(ordered)).astype(np.uint64))


def _added_up(parts: list[_Counted]) -> _Counted:
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    order = np.lexsort(values.T[::-1])
    values = values[order]
    starts = first_of_equal_rows(values)
    return _Counted(values[starts], np.add.reduceat(counts[order], starts))
