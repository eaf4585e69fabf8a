"""Sort more messages than fit in memory: write sorted runs to spill files, and merge the runs.

The first row of each page of every run stays in memory. Sorting all pages by these rows gives the
order in which a merge needs the pages. The merge reads a block of pages at a time. All rows below
the first row of the next page are then in memory. Every page is read once, and the cost of a block
does not depend on the number of runs. Memory holds a block, and a page from each run.

Reference: Knuth, *The Art of Computer Programming*, volume 3, Section 5.4.9 ("forecasting").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.stages.environment import BLOCK_BYTES, SPILL_FILE_BYTES, OpenSpillFile
from dpstream.topics.messages import MessageArray, Messages, first_of_equal_rows, sorted_rows

PAGE_BYTES: Final = 1 << 14
"""Minimum number of bytes to read from a run at a time."""
# Larger files change owner when runs are merged. Smaller files are copied, so that few files are
# open for any number of producers.
_COPIED_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """Sorted rows in a file from byte `start`; `firsts` are the first rows of its pages."""

    start: int
    rows: int
    firsts: MessageArray


@dataclass(slots=True)
class _SpillFile:
    file: BinaryIO
    runs: list[_SortedRun] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)


class SortedRuns:
    def __init__(
        self, dtype: np.dtype[np.unsignedinteger], width: int, open_spill_file: OpenSpillFile
    ) -> None:
        self._dtype = dtype
        self._width = width
        self._row_bytes = width * dtype.itemsize
        self._page_rows = max(1, PAGE_BYTES // self._row_bytes)
        self._open_spill_file = open_spill_file
        self._files: list[_SpillFile] = []

    @property
    def buffered_bytes(self) -> int:
        """Memory in use, in bytes; each of the few spill files counts as `SPILL_FILE_BYTES`."""
        firsts = sum(run.firsts.nbytes for run_file in self._files for run in run_file.runs)
        return len(self._files) * SPILL_FILE_BYTES + firsts

    @property
    def rows(self) -> int:
        return sum(run_file.rows for run_file in self._files)

    def add(self, values: MessageArray) -> None:
        """Write rows, in any order, as one more run."""
        if not self._files:
            self._files.append(_SpillFile(self._open_spill_file()))
        run_file = self._files[0]
        ordered = np.ascontiguousarray(sorted_rows(values))
        start = run_file.file.seek(0, 2)
        run_file.file.write(ordered.data)
        run_file.runs.append(_SortedRun(start, len(ordered), ordered[:: self._page_rows].copy()))

    def take(self, other: SortedRuns) -> None:
        for run_file in other._files:
            if not self._files or run_file.rows * self._row_bytes > _COPIED_BYTES:
                self._files.append(run_file)
                continue
            for run in run_file.runs:
                self.add(self._reader(run_file, run).read(run.rows))
            run_file.file.close()
        other._files = []

    def with_those_of(self, others: Iterable[SortedRuns]) -> SortedRuns:
        together = SortedRuns(self._dtype, self._width, self._open_spill_file)
        together._files = [run_file for runs in (self, *others) for run_file in runs._files]
        return together

    def close(self) -> None:
        for run_file in self._files:
            run_file.file.close()
        self._files = []

    def blocks(self) -> Iterator[MessageArray]:
        rows = max(1, BLOCK_BYTES // self._row_bytes)
        for reader in self._readers():
            while reader.left:
                yield reader.read(rows)

    def distinct(self, others: Iterable[Messages]) -> Iterator[Messages]:
        """Yield distinct rows in increasing order with their counts, block by block.

        Merges in `others`, whose rows are distinct and increasing. Files stay unchanged.
        """
        waiting: _Counted | None = None
        for block in self._merged([_Counted.of(words) for words in others]):
            values, counts = block.values, block.counts
            if waiting is not None and (values[0] == waiting.values[0]).all():
                counts[0] += waiting.counts[0]
            elif waiting is not None:
                yield Messages(waiting.values, waiting.counts)
            # The next block might start with further occurrences of the last row.
            waiting = _Counted(values[-1:], counts[-1:])
            if len(values) > 1:
                yield Messages(values[:-1], counts[:-1])
        if waiting is not None:
            yield Messages(waiting.values, waiting.counts)

    def _merged(self, others: list[_Counted]) -> Iterator[_Counted]:
        """Yield distinct rows in increasing order; the next block can repeat a block's last row."""
        readers = self._readers()
        for pages, limit in self._forecast():
            for run in np.flatnonzero(pages).tolist():
                readers[run].hold(int(pages[run]) * self._page_rows)
            plain = [reader.split(limit) for reader in readers if len(reader.values)]
            counted = [part for part in (each.split(limit) for each in others) if len(part.values)]
            block = _tallied(np.concatenate(plain))
            yield _added_up([block, *counted]) if counted else block
        if any(len(each.values) for each in others):
            yield _added_up(others)

    def _forecast(self) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield the number of pages to read next from each run, and a limit.

        Unread rows are not below the limit; it is None once the files are read.
        """
        runs = [run for run_file in self._files for run in run_file.runs]
        if not runs:
            return
        keys = _keys(np.concatenate([run.firsts for run in runs]))
        owners = np.repeat(np.arange(len(runs)), [len(run.firsts) for run in runs])
        # A stable sort keeps the pages of a run with equal keys in order.
        order = np.argsort(keys, kind="stable")
        step = max(1, BLOCK_BYTES // (self._page_rows * self._row_bytes))
        for start in range(0, len(order), step):
            stop = start + step
            limit = keys[order[stop]] if stop < len(order) else None
            yield np.bincount(owners[order[start:stop]], minlength=len(runs)), limit

    def _readers(self) -> list[_Reader]:
        return [self._reader(run_file, run) for run_file in self._files for run in run_file.runs]

    def _reader(self, run_file: _SpillFile, run: _SortedRun) -> _Reader:
        return _Reader(run_file.file, run, self._dtype, self._width)


@dataclass(slots=True)
class _Counted:
    values: MessageArray
    counts: NDArray[np.uint64]

    @classmethod
    def of(cls, words: Messages) -> _Counted:
        return cls(words.values, words.occurrences.astype(np.uint64))

    def split(self, limit: Any) -> _Counted:
        end = _rows_up_to(self.values, limit)
        taken = _Counted(self.values[:end], self.counts[:end])
        self.values, self.counts = self.values[end:], self.counts[end:]
        return taken


class _Reader:
    """Sequential reader of a run: `left` rows are unread, `values` are read but not removed."""

    def __init__(
        self, file: BinaryIO, run: _SortedRun, dtype: np.dtype[np.unsignedinteger], width: int
    ) -> None:
        self._file = file
        self._position = run.start
        self.left = run.rows
        self._dtype = dtype
        self._width = width
        self.values: MessageArray = np.empty((0, width), dtype)

    def read(self, rows: int) -> MessageArray:
        rows = min(self.left, rows)
        self._file.seek(self._position)
        data = self._file.read(rows * self._width * self._dtype.itemsize)
        self._position += len(data)
        self.left -= rows
        return np.frombuffer(data, self._dtype).reshape(rows, self._width)

    def hold(self, rows: int) -> None:
        read = self.read(rows)
        self.values = np.concatenate([self.values, read]) if len(self.values) else read

    def split(self, limit: Any) -> MessageArray:
        end = _rows_up_to(self.values, limit)
        # Copying the rest, less than a page, frees the memory of the rows read.
        taken, self.values = self.values[:end], self.values[end:].copy()
        return taken


def _rows_up_to(values: MessageArray, limit: Any) -> int:
    if limit is None:
        return len(values)
    return int(np.searchsorted(_keys(values), limit, "right"))


def _keys(values: MessageArray) -> NDArray[Any]:
    """Return keys, shape (rows,), that sort and compare as the rows do."""
    if values.shape[1] == 1:
        return values[:, 0]
    big_endian = np.ascontiguousarray(values.astype(values.dtype.newbyteorder(">")))
    return big_endian.view(f"S{values.shape[1] * values.itemsize}")[:, 0]


def _tallied(values: MessageArray) -> _Counted:
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
