"""Multisets of report messages: the buffered reports of an open window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Steps
from dpstream.pipeline.stages.environment import BLOCK_BYTES, OpenSpillFile, temporary_file
from dpstream.pipeline.stages.ordered_chunks import (
    Chunks,
    distinct_chunks,
    ordered_chunks,
    recut,
    written_out,
)
from dpstream.topics.frames import PAYLOAD_TARGET
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import (
    MessageArray,
    Messages,
    pairs_are_smaller,
    rows_per_chunk,
    split_messages,
)

if TYPE_CHECKING:
    from dpstream.pipeline.stages.sorted_runs import SortedRuns

# There are few distinct messages of one or two bytes, whatever the protocol.
_TABLE_WORD_SIZE = 2
# Maximum bytes of buffered messages. Plain messages then become a sorted run in a spill file, and
# counted messages are summed. A table replaces both once it is smaller.
_MEMORY_LIMIT = 1 << 22


class MessageMultiset:
    """Messages of one format, added in any order, released in an order independent of arrival.

    Messages of width 1 with few distinct values become a table of counts, whose size does not
    depend on the number of messages. Other messages are stored as received; beyond a few MiB, in a
    spill file.
    """

    def __init__(
        self, form: MessageFormat, open_spill_file: OpenSpillFile = temporary_file
    ) -> None:
        self._dtype = form.dtype
        self._width = form.width
        self._row_bytes = form.report_bytes
        size = form.distinct
        if size is None and form.report_bytes <= _TABLE_WORD_SIZE and form.width == 1:
            size = 1 << 8 * form.report_bytes
        self._tabular = size is not None
        self._table_size = size or 0
        self._open_spill_file = open_spill_file
        self._runs: SortedRuns | None = None
        self._drop()

    def close(self) -> None:
        self._close_runs()
        self._drop()

    def _drop(self) -> None:
        self._table: NDArray[np.int64] | None = None
        self._plain: list[MessageArray] = []
        self._plain_bytes = 0
        self._counted: list[Messages] = []
        self._counted_bytes = 0
        self._summed_bytes = 0
        self.messages = 0

    @property
    def buffered_bytes(self) -> int:
        """Memory in use, in bytes; see `SortedRuns.buffered_bytes` for spill files."""
        table = 0 if self._table is None else self._table.nbytes
        waiting = self._plain_bytes + self._counted_bytes + self._summed_bytes
        runs = 0 if self._runs is None else self._runs.buffered_bytes
        return table + runs + waiting

    def add(self, words: Messages) -> None:
        """Add messages, plain or counted; they are stored, and must not be modified afterwards."""
        self.messages += words.messages
        if words.counts is None:
            self._plain.append(words.values)
            self._plain_bytes += words.nbytes
        else:
            self._counted.append(words)
            self._counted_bytes += words.nbytes
        if self._tabular and self._plain_bytes + self._counted_bytes >= self._table_size * 8:
            self._tabulate()
        if self._plain_bytes >= _MEMORY_LIMIT:
            self._spill()
        if self._counted_bytes >= _MEMORY_LIMIT and len(self._counted) > 1:
            self._counted = [_sum(self._counted)]
            # Start again from 0, because summing costs time in proportion to distinct messages.
            self._counted_bytes, self._summed_bytes = 0, self._counted[0].nbytes

    def merge(self, other: MessageMultiset) -> None:
        if other._table is not None:
            self._tabulate()
            assert self._table is not None
            self._table += other._table
            self.messages += int(other._table.sum())
        elif other._runs is not None:
            self.messages += other._runs.rows
            self._in_files.take(other._runs)
        for values in other._plain_blocks():
            self.add(Messages(values))
        for words in other._counted:
            self.add(words)
        other.close()

    def sorted(self) -> Messages:
        """Return the whole multiset in canonical order, with counts where these make it smaller."""
        if self._tabular:
            return Messages.from_counts(self._tabulate(), self._dtype)
        if self.in_files:
            blocks = list(distinct_of_all([self]))
            values = np.concatenate([block.values for block in blocks])
            total = Messages(values, np.concatenate([block.occurrences for block in blocks]))
        else:
            plain = Messages.canonical(self._all_plain())
            if not self._counted:
                return plain
            total = _sum([plain, *self._counted])
        counted = pairs_are_smaller(self._row_bytes, total.rows, self.messages)
        if counted:
            return total
        return Messages(np.repeat(total.values, total.occurrences.astype(np.intp), axis=0))

    @property
    def in_files(self) -> bool:
        """True if the multiset is too large to sort in memory; use `ordered` or `once` instead."""
        return self._runs is not None and self._runs.rows > 0

    def ordered(self, payload_bytes: int = PAYLOAD_TARGET) -> Steps[Chunks]:
        """Return the result of `split_messages` on `sorted`, using little memory if `in_files`."""
        if not self.in_files:
            return Chunks.of(split_messages(self.sorted(), payload_bytes))
        distinct = self._distinct()
        return (yield from ordered_chunks(distinct, self.messages, self._row_bytes, payload_bytes))

    def once(self, payload_bytes: int = PAYLOAD_TARGET) -> Steps[Chunks]:
        """Return distinct messages in increasing order, with little memory; requires `in_files`."""
        return (yield from distinct_chunks(self._distinct(), self._row_bytes, payload_bytes))

    def permuted(
        self, generator: np.random.Generator, payload_bytes: int = PAYLOAD_TARGET
    ) -> Steps[Chunks]:
        from dpstream.pipeline.stages.random_order import in_random_order, permutation

        shares = -(-self.messages * self._row_bytes // BLOCK_BYTES)
        if shares <= 1:
            empty = np.empty((0, self._width), self._dtype)
            values = np.concatenate([empty, *self._one_by_one()])
            return Chunks.of(
                split_messages(Messages(permutation(values, generator)), payload_bytes)
            )
        drawn = yield from in_random_order(
            self._one_by_one(), shares, self._open_spill_file, generator
        )
        rows = rows_per_chunk(self._row_bytes, payload_bytes)
        return Chunks(-(-self.messages // rows), recut(map(Messages, drawn), rows))

    def _distinct(self) -> Callable[[], Iterator[Messages]]:
        return lambda: distinct_of_all([self])

    def _one_by_one(self) -> Iterator[MessageArray]:
        counted = self._counted
        if self._tabular:
            table = self._tabulate()
            present = np.flatnonzero(table)
            words = Messages(present.astype(self._dtype)[:, None], table[present].astype(np.uint64))
            counted = [words] if words.rows else []
        yield from self._plain_blocks()
        for block in written_out(counted, max(1, BLOCK_BYTES // self._row_bytes)):
            yield block.values

    def _tabulate(self) -> NDArray[np.int64]:
        if self._table is None:
            self._table = np.zeros(self._table_size, np.int64)
        for values in self._plain_blocks():
            words = values[:, 0].astype(np.intp)
            self._table += np.bincount(words, minlength=self._table_size)
        for counted in self._counted:
            self._table[counted.values[:, 0]] += counted.occurrences.astype(np.int64)
        self._close_runs()
        self._plain, self._plain_bytes = [], 0
        self._counted, self._counted_bytes, self._summed_bytes = [], 0, 0
        return self._table

    def _spill(self) -> None:
        if not self._plain:
            return
        values = np.concatenate(self._plain)
        self._plain, self._plain_bytes = [], 0
        self._in_files.add(values)

    @property
    def _in_files(self) -> SortedRuns:
        if self._runs is None:
            from dpstream.pipeline.stages.sorted_runs import SortedRuns

            self._runs = SortedRuns(self._dtype, self._width, self._open_spill_file)
        return self._runs

    def _close_runs(self) -> None:
        if self._runs is not None:
            self._runs.close()
            self._runs = None

    def _plain_blocks(self) -> Iterator[MessageArray]:
        if self._runs is not None:
            yield from self._runs.blocks()
        if self._plain:
            # One block, because counting a block costs at least the number of distinct messages.
            yield np.concatenate(self._plain)

    def _all_plain(self) -> MessageArray:
        empty = np.empty((0, self._width), self._dtype)
        return np.concatenate([empty, *self._plain_blocks()])


def distinct_of_all(parts: Sequence[MessageMultiset]) -> Iterator[Messages]:
    """Yield the distinct messages of multisets without tables, in order, with counts."""
    counted = []
    for part in parts:
        if part.in_files:
            part._spill()
            in_memory = part._counted
        else:
            in_memory = [part.sorted()] if part.messages else []
        if in_memory:
            counted.append(_sum(in_memory))
    runs = [part._runs for part in parts[1:] if part._runs is not None]
    return parts[0]._in_files.with_those_of(runs).distinct(counted)


def _sum(parts: list[Messages]) -> Messages:
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.occurrences.astype(np.uint64) for part in parts])
    order = np.lexsort(values.T[::-1])
    values, counts = values[order], counts[order]
    first = np.ones(len(values), np.bool_)
    first[1:] = (values[1:] != values[:-1]).any(axis=1)
    starts = np.flatnonzero(first)
    return Messages(values[starts], np.add.reduceat(counts, starts))
