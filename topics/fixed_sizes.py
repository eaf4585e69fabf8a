"""Encode reports in batches whose number and sizes are independent of the reports.

If devices rely on the shuffler to hide their messages, the number of messages is secret too. So a
producer always sends enough bytes for the maximum number, in one of two encodings:

* slots: the rows, one after the other, then zeros up to the number of slots.
* table: the first message of the table (uint64), then the counts of this and all later messages,
  zeros included, as integers of the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from dpstream.topics.frames import PAYLOAD_TARGET, U4_MAX, CodecError
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import WORD_TYPES, Messages, check_message_fields

SLOTS_ENCODING: Final = 2
TABLE_ENCODING: Final = 3

_COUNT_TYPES = {size: np.dtype(f"<u{size}") for size in (1, 2, 4)}
_FIRST_TYPE = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Slots:
    rows: int


@dataclass(frozen=True, slots=True)
class CountTable:
    """Counts of consecutive messages of width 1, from `first` on; 1, 2 or 4 bytes per count."""

    first: int
    cells: int
    count_bytes: int


FixedSize: TypeAlias = Slots | CountTable


def fixed_size(form: MessageFormat, most: int) -> FixedSize:
    """Return the smaller of the two encodings for up to `most` reports (at most 2^32 - 1).

    >>> fixed_size(MessageFormat(np.dtype("<u4"), distinct=100), 20)
    Slots(rows=20)
    >>> fixed_size(MessageFormat(np.dtype("<u4"), distinct=100), 1000)
    CountTable(first=0, cells=100, count_bytes=2)
    """
    if most > U4_MAX:
        raise CodecError(
            f"a producer can send up to {most:,} messages per epoch; the maximum is {U4_MAX:,}. "
            "Divide its devices among several producers"
        )
    cells = table_cells(form)
    if cells is not None:
        table = CountTable(0, cells, np.min_scalar_type(max(most, 1)).itemsize)
        if _FIRST_TYPE.itemsize + cells * table.count_bytes < most * form.report_bytes:
            return table
    return Slots(most)


def table_cells(form: MessageFormat) -> int | None:
    """Return the number of cells in a table of all messages, or None if there are too many.

    >>> table_cells(MessageFormat(np.dtype("<u4"), distinct=100))
    100
    >>> table_cells(MessageFormat(np.dtype("<u4"))) is None
    True
    """
    if form.distinct is None and form.width == 1 and form.report_bytes <= 2:
        return 1 << 8 * form.report_bytes
    return form.distinct


def split_fixed(
    words: Messages, size: FixedSize, payload_bytes: int = PAYLOAD_TARGET
) -> Iterator[tuple[Messages, FixedSize]]:
    """Split messages into one or more chunks that each fit in a record; yield each with its size.

    The number and sizes of the chunks depend only on `size` and the width of a row.
    """
    if isinstance(size, CountTable):
        yield from _cut_table(words, size, max(1, payload_bytes // size.count_bytes - 8))
        return
    if words.messages > size.rows:
        raise CodecError(f"{words.messages} reports exceed the capacity of {size.rows} slots")
    values = words.values
    if words.counts is not None:
        values = np.repeat(values, words.counts.astype(np.intp), axis=0)
    rows = max(1, payload_bytes // (words.width * values.itemsize))
    for start in range(0, max(size.rows, 1), rows):
        yield Messages(values[start : start + rows]), Slots(min(rows, size.rows - start))


def _cut_table(
    words: Messages, size: CountTable, cells: int
) -> Iterator[tuple[Messages, CountTable]]:
    values, counts = words.values[:, 0], words.counts
    if counts is None:
        values, occurring = np.unique(values, return_counts=True)
        counts = occurring.astype(np.uint32)
    end = size.first + size.cells
    if len(values) and not size.first <= int(values[0]) <= int(values[-1]) < end:
        raise CodecError(
            f"messages {values[0]} to {values[-1]} are out of range; expected {size.first} to "
            f"{end - 1}"
        )
    for first in range(size.first, end, cells):
        part = replace(size, first=first, cells=min(cells, end - first))
        low, high = np.searchsorted(values, [first, first + part.cells]).tolist()
        yield Messages(values[low:high, None], counts[low:high]), part


def pack_sized(words: Messages, size: FixedSize) -> tuple[tuple[int, ...], bytes]:
    return _packed_slots(words, size) if isinstance(size, Slots) else _packed_table(words, size)


def _packed_slots(words: Messages, size: Slots) -> tuple[tuple[int, ...], bytes]:
    if words.counts is not None:
        raise CodecError("slots require plain messages, without counts")
    if words.rows > size.rows:
        raise CodecError(f"{words.rows} rows do not fit in {size.rows} slots")
    itemsize, width, rows = words.values.itemsize, words.width, words.rows
    filler = bytes((size.rows - rows) * width * itemsize)
    return (SLOTS_ENCODING, itemsize, width, rows, rows), words.values.tobytes() + filler


def _packed_table(words: Messages, size: CountTable) -> tuple[tuple[int, ...], bytes]:
    dtype = _COUNT_TYPES.get(size.count_bytes)
    if dtype is None or words.counts is None or words.width != 1:
        raise CodecError("a table requires counts of 1, 2 or 4 bytes each, for messages of width 1")
    table = np.zeros(size.cells, dtype)
    cells = words.values[:, 0].astype(np.int64) - size.first
    most = int(np.iinfo(dtype).max)
    if words.rows and not (cells[0] >= 0 and cells[-1] < size.cells):
        raise CodecError(f"a message is outside the table of {size.cells} cells")
    if words.rows and int(words.counts.max()) > most:
        raise CodecError(f"a count exceeds the maximum for a cell, {most}")
    table[cells] = words.counts
    fields = (TABLE_ENCODING, words.values.itemsize, 1, size.cells, words.messages)
    return fields, np.array(size.first, _FIRST_TYPE).tobytes() + table.tobytes()


def unpack_sized(
    data: bytes, start: int, encoding: int, word_bytes: int, width: int, rows: int, messages: int
) -> tuple[Messages, FixedSize]:
    """Return the messages in `data[start:]` and their fixed size, or raise `CodecError`."""
    if encoding not in (SLOTS_ENCODING, TABLE_ENCODING):
        raise CodecError(
            f"messages have unknown encoding {encoding}; expected 0 (plain), 1 (pairs), 2 (slots) "
            "or 3 (table)"
        )
    check_message_fields(word_bytes, width, messages)
    if encoding == SLOTS_ENCODING:
        return _slots(data, start, word_bytes, width, rows, messages)
    return _table(data, start, word_bytes, width, rows, messages)


def _slots(
    data: bytes, start: int, word_bytes: int, width: int, rows: int, messages: int
) -> tuple[Messages, Slots]:
    row_bytes, found = width * word_bytes, len(data) - start
    slots, rest = divmod(found, row_bytes)
    if rest or rows > slots:
        raise CodecError(
            f"payload has {found} bytes; expected a multiple of {row_bytes}, at least "
            f"{rows * row_bytes} for {rows} rows"
        )
    if messages != rows:
        raise CodecError(f"header states {messages} messages; expected {rows}, one per plain row")
    end = start + rows * row_bytes
    if data.count(0, end) != len(data) - end:
        raise CodecError("unused slots contain data; expected zeros")
    return Messages(np.ndarray((rows, width), WORD_TYPES[word_bytes], data, start)), Slots(slots)


def _table(
    data: bytes, start: int, word_bytes: int, width: int, cells: int, messages: int
) -> tuple[Messages, CountTable]:
    length = len(data) - start - _FIRST_TYPE.itemsize
    count_bytes = length // cells if cells else 0
    if width != 1 or count_bytes not in _COUNT_TYPES or length != cells * count_bytes:
        raise CodecError(
            f"table has {length} bytes for {cells} cells and messages of width {width}; "
            "expected 1, 2 or 4 bytes per cell and width 1"
        )
    first = int(np.ndarray((), _FIRST_TYPE, data, start))
    if first + cells > 1 << 8 * word_bytes:
        raise CodecError(
            f"a table of {cells} cells starting at message {first} exceeds the range of "
            f"{word_bytes}-byte messages"
        )
    counts = np.frombuffer(data, _COUNT_TYPES[count_bytes], cells, len(data) - length)
    present = np.flatnonzero(counts)
    values = (present + first).astype(WORD_TYPES[word_bytes])[:, None]
    words = Messages(values, counts[present].astype(np.dtype("<u4")))
    if words.messages != messages:
        raise CodecError(f"payload has {words.messages} messages; the header states {messages}")
    return words, CountTable(first, cells, count_bytes)
