"""Cut a large multiset into chunks, in canonical order, without loading it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dpstream.pipeline.actions import Steps, Yield
from dpstream.topics.frames import PAYLOAD_TARGET
from dpstream.topics.messages import (
    Messages,
    largest_count,
    layers,
    pairs_are_smaller,
    rows_per_chunk,
)


@dataclass(frozen=True, slots=True)
class Chunks:
    total: int
    words: Iterator[Messages]

    @classmethod
    def of(cls, chunks: Sequence[Messages]) -> Chunks:
        return cls(len(chunks), iter(chunks))


def ordered_chunks(
    distinct: Callable[[], Iterator[Messages]],
    messages: int,
    row_bytes: int,
    payload_bytes: int = PAYLOAD_TARGET,
) -> Steps[Chunks]:
    """Cut the canonical encoding of a multiset into the same chunks as `split_messages`.

    Reads the multiset twice, because its number of distinct rows determines the encoding and the
    number of chunks, which every chunk states. `distinct` yields these rows in increasing order
    with counts, in blocks. `messages` is the number of rows with repetitions, at least 1.
    """
    rows = rows_per_chunk(row_bytes, payload_bytes, counted=True)
    total_rows, frequent = 0, []
    for block in distinct():
        total_rows += block.rows
        if not pairs_are_smaller(row_bytes, total_rows, messages):
            rows = rows_per_chunk(row_bytes, payload_bytes)
            return Chunks(-(-messages // rows), recut(written_out(distinct(), rows), rows))
        often = block.occurrences > largest_count(rows, rows)
        frequent.append(Messages(block.values[often], block.occurrences[often]))
        yield Yield()
    largest = largest_count(total_rows, rows)
    further = list(_further_chunks(frequent, largest, rows))
    return Chunks(
        -(-total_rows // rows) + len(further), _counted(distinct(), largest, rows, further)
    )


def distinct_chunks(
    distinct: Callable[[], Iterator[Messages]], row_bytes: int, payload_bytes: int = PAYLOAD_TARGET
) -> Steps[Chunks]:
    """Cut distinct rows into the chunks of `split_messages`; blocks are in increasing order."""
    total_rows = 0
    for block in distinct():
        total_rows += block.rows
        yield Yield()
    rows = rows_per_chunk(row_bytes, payload_bytes)
    return Chunks(
        -(-total_rows // rows), recut((Messages(block.values) for block in distinct()), rows)
    )


def _further_chunks(frequent: Iterable[Messages], largest: int, rows: int) -> Iterator[Messages]:
    """Yield chunks for occurrences of frequent rows that exceed the largest count in a chunk."""
    words = _joined(list(frequent))
    for number, layer in enumerate(layers(words, largest)):
        if number:
            yield from recut([layer], rows)


def _counted(
    distinct: Iterator[Messages], largest: int, rows: int, further: Iterable[Messages]
) -> Iterator[Messages]:
    yield from recut((next(layers(block, largest)) for block in distinct), rows)
    yield from further


def written_out(counted: Iterable[Messages], most: int) -> Iterator[Messages]:
    for block in counted:
        ends = np.cumsum(block.occurrences, dtype=np.int64)
        for start in range(0, int(ends[-1]), most):
            stop = min(start + most, int(ends[-1]))
            first, last = np.searchsorted(ends, [start, stop - 1], "right")
            inside = np.minimum(ends[first : last + 1], stop)
            times = np.diff(inside, prepend=start)
            yield Messages(np.repeat(block.values[first : last + 1], times, axis=0))


def recut(blocks: Iterable[Messages], rows: int) -> Iterator[Messages]:
    """Yield the same rows, `rows` at a time; the last block has the remainder."""
    buffered: list[Messages] = []
    count = 0
    for block in blocks:
        buffered.append(block)
        count += block.rows
        if count >= rows:
            whole = _joined(buffered)
            for start in range(0, count - rows + 1, rows):
                yield _rows(whole, start, start + rows)
            count %= rows
            buffered = [_rows(whole, whole.rows - count, whole.rows)]
    if count:
        yield _joined(buffered)


def _rows(words: Messages, start: int, stop: int) -> Messages:
    counts = None if words.counts is None else words.counts[start:stop]
    return Messages(words.values[start:stop], counts)


def _joined(parts: list[Messages]) -> Messages:
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts])
    counts = [part.counts for part in parts if part.counts is not None]
    return Messages(values, np.concatenate(counts) if counts else None)
