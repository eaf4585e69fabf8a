"""Multisets of report words: what an open window holds of the reports it was sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.actions import Steps
from pipeline.stages.ordered_pieces import Pieces, ordered_pieces
from pipeline.stages.scratch import SCRATCH_FILE_BYTES, Scratch, temporary_file
from pipeline.stages.sorted_runs import SortedRuns
from topics.frames import PAYLOAD_TARGET
from topics.word_forms import WordForm
from topics.words import WordArray, Words, pairs_are_smaller

# There are few words of one or two bytes, whatever a protocol says of them.
_TABLE_WORD_SIZE = 2
# Words wait in memory up to this many bytes: plain ones then become a sorted run in a scratch file,
# counted ones are added up. A table takes their place once it is the smaller thing.
_MEMORY_LIMIT = 1 << 22


class WordMultiset:
    """Words of one form, added in any order, released in one that says nothing.

    Single words of which there are few become a table of counts, whose size does not depend on how
    many are added. Others are kept as they came, in a scratch file beyond a few MiB; counted ones
    are never written out as often as they count.

    Args:
        form: of the words. Where it says how many different ones there are, no others are added.
        scratch: opens a scratch file.
    """

    def __init__(self, form: WordForm, scratch: Scratch = temporary_file) -> None:
        self._dtype = form.dtype
        self._width = form.width
        size = form.distinct
        if size is None and form.report_bytes <= _TABLE_WORD_SIZE and form.width == 1:
            size = 1 << 8 * form.report_bytes
        self._tabular = size is not None
        self._table_size = size or 0
        self._runs = SortedRuns(form.dtype, form.width, scratch)
        self._forget()

    def close(self) -> None:
        """Forget everything and give the scratch files back."""
        self._runs.close()
        self._forget()

    def _forget(self) -> None:
        self._table: NDArray[np.int64] | None = None
        self._plain: list[WordArray] = []
        self._plain_bytes = 0
        self._counted: list[Words] = []
        self._counted_bytes = 0
        self._summed_bytes = 0
        self.messages = 0

    @property
    def held_bytes(self) -> int:
        """Memory that is held; a scratch file counts as `SCRATCH_FILE_BYTES`, for there are few."""
        table = 0 if self._table is None else self._table.nbytes
        files = self._runs.files * SCRATCH_FILE_BYTES
        return table + files + self._plain_bytes + self._counted_bytes + self._summed_bytes

    def add(self, words: Words) -> None:
        """Add words, plain or counted; they are kept, so they must not be written to later."""
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
            # Counts from 0 again: adding up costs as much as there are distinct words.
            self._counted_bytes, self._summed_bytes = 0, self._counted[0].nbytes

    def merge(self, other: WordMultiset) -> None:
        """Add everything that another multiset of the same form holds; it ends empty."""
        if other._table is not None:
            self._tabulate()
            assert self._table is not None
            self._table += other._table
            self.messages += int(other._table.sum())
        elif not self._tabular:
            self.messages += other._runs.rows
            self._runs.take(other._runs)
        for values in other._plain_blocks():
            self.add(Words(values))
        for words in other._counted:
            self.add(words)
        other.close()

    def sorted(self) -> Words:
        """The whole multiset in canonical order, counted where that is smaller."""
        if self._tabular:
            return Words.from_counts(self._tabulate(), self._dtype)
        plain = Words.canonical(self._all_plain())
        if not self._counted:
            return plain
        total = _sum([plain, *self._counted])
        row_bytes = self._width * self._dtype.itemsize
        counted = pairs_are_smaller(row_bytes, total.rows, self.messages)
        return total if counted else Words(_written_out(total))

    @property
    def in_files(self) -> bool:
        """Whether it is too large to be sorted in memory, and `ordered` is there for it."""
        return not self._tabular and self._runs.rows > 0

    def ordered(self, payload_bytes: int = PAYLOAD_TARGET) -> Steps[Pieces]:
        """What `split_words` makes of `sorted`, in little memory, of what is `in_files`."""
        self._spill()
        # What is in memory is added up once, and not at every block.
        counted = [_sum(self._counted)] if self._counted else []
        return (
            yield from ordered_pieces(
                lambda: self._runs.distinct(counted),
                self.messages,
                self._width * self._dtype.itemsize,
                payload_bytes,
            )
        )

    def permuted(self, generator: np.random.Generator) -> Words:
        """The whole multiset, message by message, in a random order."""
        if self._tabular:
            words = np.arange(self._table_size, dtype=self._dtype)[:, None]
            values = np.repeat(words, self._tabulate(), axis=0)
        else:
            counted = map(_written_out, self._counted)
            values = np.concatenate([self._all_plain(), *counted])
        # NumPy swaps numbers faster than rows of one number.
        rows = values[:, 0] if self._width == 1 else values
        return Words(generator.permutation(rows).reshape(values.shape))

    def _tabulate(self) -> NDArray[np.int64]:
        if self._table is None:
            self._table = np.zeros(self._table_size, np.int64)
        for values in self._plain_blocks():
            words = values[:, 0].astype(np.intp)
            self._table += np.bincount(words, minlength=self._table_size)
        for counted in self._counted:
            self._table[counted.values[:, 0]] += counted.occurrences.astype(np.int64)
        self._runs.close()
        self._plain, self._plain_bytes = [], 0
        self._counted, self._counted_bytes, self._summed_bytes = [], 0, 0
        return self._table

    def _spill(self) -> None:
        if not self._plain:
            return
        values = np.concatenate(self._plain)
        self._plain, self._plain_bytes = [], 0
        self._runs.add(values)

    def _plain_blocks(self) -> Iterator[WordArray]:
        yield from self._runs.blocks()
        if self._plain:
            # At once: tallying a block costs at least as much as there are different words.
            yield np.concatenate(self._plain)

    def _all_plain(self) -> WordArray:
        empty = np.empty((0, self._width), self._dtype)
        return np.concatenate([empty, *self._plain_blocks()])


def _written_out(words: Words) -> WordArray:
    return np.repeat(words.values, words.occurrences.astype(np.intp), axis=0)


def _sum(parts: list[Words]) -> Words:
    """Counted and plain words added up: distinct, in increasing order, with their counts."""
    values = np.concatenate([part.values for part in parts])
    counts = np.concatenate([part.occurrences.astype(np.uint64) for part in parts])
    order = np.lexsort(values.T[::-1])
    values, counts = values[order], counts[order]
    first = np.ones(len(values), np.bool_)
    first[1:] = (values[1:] != values[:-1]).any(axis=1)
    starts = np.flatnonzero(first)
    return Words(values[starts], np.add.reduceat(counts, starts))
