"""Reports as opaque integers: plain, or sorted and counted.

A report is a row of `width` unsigned integers of 1, 2, 4 or 8 bytes, which only the randomizer and
the aggregator of a protocol interpret. Reports have one of two encodings:

* plain: the rows, one after the other, in any order.
* pairs: the count of each row (uint32, at least 1), then the distinct rows in increasing order.

A multiset of reports has one canonical form, which reveals nothing but the multiset: sorted, and as
pairs if and only if that is smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.topics.frames import (
    MESSAGES_CAP,
    PAYLOAD_TARGET,
    RECORD_CAP,
    U4_MAX,
    CodecError,
    OversizedError,
)

MessageArray: TypeAlias = NDArray[np.unsignedinteger]

MESSAGES_FIELDS = "BBHIQ"
"""Header fields: encoding, bytes per integer, width, rows, messages."""

_PLAIN, _PAIRS = 0, 1
PLAIN_ENCODINGS: Final = 2
"""Number of encodings decoded here; higher numbers are in `dpstream.topics.fixed_sizes`."""
_WIDTH_MAX = 2**16 - 1
WORD_TYPES: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_COUNT_TYPE = np.dtype("<u4")
_WIDE_COUNT_TYPE = np.dtype("<u8")
# Number of columns to sort by first; further columns matter only for ties.
_DECISIVE = 4
# Batch size, in rows: np.bincount converts its whole input to 8-byte integers.
_TABLE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Reports, one row each, or distinct reports with counts.

    >>> Messages.canonical(np.array([[7], [7], [5], [7], [7], [7], [5], [7]], np.uint8)).messages
    8

    Attributes:
        values: Unsigned little-endian integers, (rows, width); read-only views if decoded.
        counts: Multiplicity of each row, (rows,); None if every row is one report. uint32, or
            uint64 for larger counts before `split_messages`.
    """

    values: MessageArray
    counts: NDArray[np.unsignedinteger] | None = None

    def __post_init__(self) -> None:
        values, counts = self.values, self.counts
        if values.dtype not in WORD_TYPES.values():
            raise CodecError(
                f"messages are {values.dtype}; expected unsigned little-endian integers"
            )
        if values.ndim != 2 or not 1 <= values.shape[1] <= _WIDTH_MAX:
            raise CodecError(
                f"messages have shape {values.shape}; expected (rows, 1 to {_WIDTH_MAX})"
            )
        if counts is None:
            return
        if counts.dtype not in (_COUNT_TYPE, _WIDE_COUNT_TYPE):
            raise CodecError(f"counts are {counts.dtype}; expected uint32 or uint64")
        if counts.shape != values.shape[:1]:
            raise CodecError(
                f"counts of shape {counts.shape} do not match {len(values)} rows of messages"
            )
        if not counts.all():
            raise CodecError("a count is 0; expected at least 1")
        if not _increases(values):
            raise CodecError("counted messages must be distinct and in increasing order")

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def messages(self) -> int:
        return self.rows if self.counts is None else int(self.counts.sum(dtype=np.uint64))

    @property
    def occurrences(self) -> NDArray[np.unsignedinteger]:
        """Multiplicity of each row, shape (rows,)."""
        return np.ones(self.rows, _COUNT_TYPE) if self.counts is None else self.counts

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, equal to their size in a record."""
        return self.values.nbytes + (0 if self.counts is None else self.counts.nbytes)

    @classmethod
    def canonical(cls, values: MessageArray) -> Messages:
        """Return the canonical form of plain reports, (n, width), independent of their order.

        Rows are ordered numerically, by the first column, then the second and so on. Messages of
        width 1 and one or two bytes are counted instead of sorted, which is 4 to 25 times faster.
        """
        plain = cls(values)
        dtype, row_bytes = values.dtype, values.dtype.itemsize * plain.width
        if row_bytes <= 2 and plain.width == 1:
            return cls.from_counts(_count_values(values[:, 0]), dtype)
        ordered = sorted_rows(values)
        starts = first_of_equal_rows(ordered)
        if not pairs_are_smaller(row_bytes, len(starts), plain.rows):
            return cls(ordered)
        return cls(ordered[starts], _narrowest(np.diff(starts, append=plain.rows)))

    @classmethod
    def from_counts(
        cls, counts: NDArray[np.int64], dtype: np.dtype[np.unsignedinteger] | None = None
    ) -> Messages:
        """Return messages 0 to size - 1 with these counts, shape (size,), in canonical form."""
        dtype = np.min_scalar_type(max(counts.size, 1) - 1) if dtype is None else dtype
        if counts.ndim != 1 or counts.size > 1 << 8 * dtype.itemsize:
            raise CodecError(f"a table of shape {counts.shape} does not fit {dtype} messages")
        if (counts < 0).any():
            raise CodecError("a count in the table is negative; expected at least 0")
        present = np.flatnonzero(counts)
        values, occurring = present.astype(dtype)[:, None], counts[present]
        if pairs_are_smaller(dtype.itemsize, len(present), int(occurring.sum())):
            return cls(values, _narrowest(occurring))
        return cls(np.repeat(values, occurring, axis=0))


def split_messages(words: Messages, payload_bytes: int = PAYLOAD_TARGET) -> list[Messages]:
    """Split messages into chunks that fit in a record; only the last can have fewer rows.

    Chunks are views. There is at least one chunk, possibly empty. A row of more than
    `payload_bytes` is a chunk of its own. If a count exceeds the limits of a record (uint32, and
    2^40 messages in all), messages are first split into layers. The first has as much of every
    count as fits, the next has the remainder, and so on. The rows of each layer strictly increase;
    its last chunk can be short.
    """
    rows = rows_per_chunk(
        words.width * words.values.itemsize, payload_bytes, counted=words.counts is not None
    )
    chunks = []
    for layer in (
        [words] if words.counts is None else layers(words, largest_count(words.rows, rows))
    ):
        for start in range(0, max(layer.rows, 1), rows):
            counts = None if layer.counts is None else layer.counts[start : start + rows]
            chunks.append(Messages(layer.values[start : start + rows], counts))
    return chunks


def rows_per_chunk(
    row_bytes: int, payload_bytes: int = PAYLOAD_TARGET, *, counted: bool = False
) -> int:
    """Return the number of rows, of `row_bytes` bytes each, in a chunk of `split_messages`."""
    return max(1, payload_bytes // (row_bytes + counted * _COUNT_TYPE.itemsize))


def largest_count(rows: int, chunk_rows: int) -> int:
    """Return the maximum multiplicity of a row in a chunk, given the number of distinct rows."""
    return min(U4_MAX, MESSAGES_CAP // max(1, min(chunk_rows, rows)))


def layers(words: Messages, largest: int) -> Iterator[Messages]:
    """Yield messages that sum to `words`, with counts (uint32) of at most `largest`."""
    values, counts = words.values, words.occurrences
    while True:
        yield Messages(values, np.minimum(counts, largest).astype(_COUNT_TYPE))
        left = counts > largest
        if not left.any():
            return
        values, counts = values[left], counts[left] - np.uint64(largest)


def pack_messages(words: Messages) -> tuple[tuple[int, ...], bytes]:
    values, counts, messages = words.values, words.counts, words.messages
    if words.nbytes > RECORD_CAP:
        raise OversizedError(
            f"{words.nbytes} bytes of messages exceed the maximum for a record, {RECORD_CAP}: use "
            "split_messages"
        )
    if messages > MESSAGES_CAP:
        raise CodecError(f"{messages} messages exceed the maximum for a record, {MESSAGES_CAP}")
    encoding, payload = _PLAIN, values.tobytes()
    if counts is not None:
        if counts.dtype != _COUNT_TYPE:
            raise CodecError("counts are 8-byte integers; expected 4 bytes: use split_messages")
        encoding, payload = _PAIRS, counts.tobytes() + payload
    return (encoding, values.itemsize, words.width, words.rows, messages), payload


def unpack_messages(
    data: bytes, start: int, encoding: int, word_bytes: int, width: int, rows: int, messages: int
) -> Messages:
    """Return the messages in `data[start:]`, as views of it, or raise `CodecError`."""
    if encoding not in (_PLAIN, _PAIRS):
        raise CodecError(
            f"messages have unknown encoding {encoding}; expected 0 (plain) or 1 (pairs)"
        )
    check_message_fields(word_bytes, width, messages)
    counts_bytes = _COUNT_TYPE.itemsize * rows if encoding == _PAIRS else 0
    expected, found = rows * width * word_bytes + counts_bytes, len(data) - start
    if expected != found:
        raise CodecError(
            f"payload has {found} bytes; {rows} rows of {width} {word_bytes}-byte integers "
            f"{'with counts ' if counts_bytes else ''}require {expected}"
        )
    # Counts come first: they are 4-byte aligned there for any integer size.
    values: MessageArray = np.ndarray(
        (rows, width), WORD_TYPES[word_bytes], data, start + counts_bytes
    )
    counts = np.ndarray((rows,), _COUNT_TYPE, data, start) if encoding == _PAIRS else None
    words = Messages(values, counts)
    if words.messages != messages:
        raise CodecError(f"payload has {words.messages} messages; the header states {messages}")
    return words


def check_message_fields(word_bytes: int, width: int, messages: int) -> None:
    if word_bytes not in WORD_TYPES:
        raise CodecError(f"messages have {word_bytes}-byte integers; expected 1, 2, 4 or 8 bytes")
    if width < 1:
        raise CodecError("messages have width 0; expected at least 1")
    if messages > MESSAGES_CAP:
        raise CodecError(f"{messages} messages exceed the maximum for a record, {MESSAGES_CAP}")


def _increases(values: MessageArray) -> bool:
    earlier, later = values[:-1], values[1:]
    if values.shape[1] > 1:
        decisive = (earlier != later).argmax(axis=1)[:, None]
        earlier = np.take_along_axis(earlier, decisive, axis=1)
        later = np.take_along_axis(later, decisive, axis=1)
    return bool((earlier < later).all())


def _count_values(words: MessageArray) -> NDArray[np.int64]:
    table = np.zeros(1 << 8 * words.itemsize, np.int64)
    for start in range(0, words.size, _TABLE_ROWS):
        table += np.bincount(words[start : start + _TABLE_ROWS], minlength=table.size)
    return table


def pairs_are_smaller(row_bytes: int, distinct: int, messages: int) -> bool:
    return distinct * (row_bytes + _COUNT_TYPE.itemsize) < messages * row_bytes


def sorted_rows(values: MessageArray) -> MessageArray:
    if values.shape[1] == 1:
        return np.sort(values[:, 0])[:, None]
    # Wide rows are ciphertexts, which differ in their first columns.
    head = values[:, :_DECISIVE]
    ordered = values[np.lexsort(head.T[::-1])]
    tied = (ordered[1:, :_DECISIVE] == ordered[:-1, :_DECISIVE]).all(axis=1)
    if (ordered[1:][tied] != ordered[:-1][tied]).any():
        return values[np.lexsort(values.T[::-1])]
    return ordered


def first_of_equal_rows(ordered: MessageArray) -> NDArray[np.intp]:
    first = np.ones(len(ordered), np.bool_)
    first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return np.flatnonzero(first)


def _narrowest(counts: NDArray[np.int64]) -> NDArray[np.unsignedinteger]:
    return counts.astype(_COUNT_TYPE if counts.max() <= U4_MAX else _WIDE_COUNT_TYPE)
