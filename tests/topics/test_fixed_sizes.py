"""Test that the number and sizes of batches are independent of the reports in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.topics.batches import Batch, decode_batch, encode_batch
from dpstream.topics.fixed_sizes import (
    CountTable,
    FixedSize,
    Slots,
    fixed_size,
    pack_sized,
    split_fixed,
)
from dpstream.topics.frames import RECORD_TARGET, U4_MAX, CodecError
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import WORD_TYPES, Messages

IDENTITY = bytes(range(16))


def batch_of(words: Messages, size: FixedSize | None) -> Batch:
    return Batch(IDENTITY, IDENTITY, IDENTITY, IDENTITY, 1, words, size)


def counted(values: NDArray[Any]) -> dict[tuple[int, ...], int]:
    rows, counts = np.unique(values, axis=0, return_counts=True)
    return {tuple(row): int(count) for row, count in zip(rows.tolist(), counts, strict=True)}


def written_out(words: Messages) -> NDArray[Any]:
    if words.counts is None:
        return words.values
    return np.repeat(words.values, words.counts.astype(np.intp), axis=0)


@st.composite
def reports_and_size(draw: st.DrawFn) -> tuple[NDArray[Any], FixedSize]:
    dtype = WORD_TYPES[draw(st.sampled_from([1, 2, 4]))]
    width = draw(st.integers(1, 3))
    distinct = draw(st.integers(1, 200)) if width == 1 and draw(st.booleans()) else None
    form = MessageFormat(dtype, width, distinct)
    rows = draw(st.integers(0, 80))
    high = np.iinfo(dtype).max if distinct is None else distinct - 1
    number = draw(st.integers(0, 2**32))
    values = np.random.default_rng(number).integers(0, high, (rows, width), endpoint=True)
    most = rows + draw(st.integers(0, 400))
    return values.astype(dtype), fixed_size(form, most)


def test_table_size_is_independent_of_counts() -> None:
    sizes = set()
    for count in (1, 255, 256, 65_535):
        words = Messages(np.array([[2]], np.uint8), np.array([count], np.uint32))
        (chunk,) = split_fixed(words, CountTable(0, 4, 2))
        sizes.add(len(encode_batch(batch_of(*chunk))))
    assert len(sizes) == 1


@given(reports_and_size(), st.sampled_from([16, 100, 60_000]), st.booleans())
def test_batches_decode_to_all_reports_and_hide_the_report_count(
    reports: tuple[NDArray[Any], FixedSize], payload_bytes: int, canonical: bool
) -> None:
    values, size = reports
    words = Messages.canonical(values) if canonical else Messages(values)
    arrived: dict[tuple[int, ...], int] = {}
    sizes = []
    for chunk, room in split_fixed(words, size, payload_bytes):
        record = encode_batch(batch_of(chunk, room))
        decoded = decode_batch(record)
        assert encode_batch(decoded) == record
        for row, count in counted(written_out(decoded.words)).items():
            arrived[row] = arrived.get(row, 0) + count
        sizes.append(len(record))
    assert arrived == counted(values)
    nothing = Messages(values[:0])
    without = [
        len(encode_batch(batch_of(chunk, room)))
        for chunk, room in split_fixed(nothing, size, payload_bytes)
    ]
    assert sizes == without
    assert sizes


@pytest.mark.parametrize("most", [0, 1, 100_000, 10_000_000])
def test_chunks_fit_the_target_record_size(most: int) -> None:
    for form in (
        MessageFormat(np.dtype("<u4"), distinct=900_000),
        MessageFormat(np.dtype("u1"), 40),
    ):
        words = Messages(np.zeros((0, form.width), form.dtype))
        for chunk, room in split_fixed(words, fixed_size(form, most)):
            assert len(encode_batch(batch_of(chunk, room))) <= RECORD_TARGET


def test_more_messages_than_uint32_can_count_are_rejected() -> None:
    fixed_size(MessageFormat(np.dtype("u1"), distinct=1), U4_MAX)
    with pytest.raises(CodecError, match="Divide its devices among several producers"):
        fixed_size(MessageFormat(np.dtype("u1"), distinct=1), U4_MAX + 1)


def test_oversized_input_is_rejected() -> None:
    three = Messages(np.array([[1], [2], [3]], np.uint8))
    with pytest.raises(CodecError, match="3 reports exceed the capacity of"):
        list(split_fixed(three, Slots(2)))
    with pytest.raises(CodecError, match="messages 1 to 3 are out of range; expected 0 to 2"):
        list(split_fixed(three, CountTable(0, 3, 1)))
    with pytest.raises(CodecError, match="3 rows do not fit in 2 slots"):
        pack_sized(three, Slots(2))
    many = Messages(three.values, np.array([1, 256, 1], np.uint32))
    with pytest.raises(CodecError, match="a count exceeds the maximum for a cell, 255"):
        pack_sized(many, CountTable(0, 4, 1))
    with pytest.raises(CodecError, match="a message is outside the table of 4 cells"):
        pack_sized(many, CountTable(2, 4, 2))


def test_each_fixed_size_record_has_a_single_encoding(forge: Any) -> None:
    words = Messages(np.array([[1], [2], [3]], np.uint8))
    slots = encode_batch(batch_of(words, Slots(5)))
    for place, byte in ((-1, b"\x01"), (-2, b"\x07")):
        with pytest.raises(CodecError, match="unused slots contain data"):
            decode_batch(forge(slots, (len(slots) + place, byte)))
    table = encode_batch(
        batch_of(Messages(words.values, np.array([1, 2, 1], np.uint32)), CountTable(0, 4, 1))
    )
    assert decode_batch(table).words.messages == 4
    with pytest.raises(CodecError, match="payload has 5 messages; the header states"):
        decode_batch(forge(table, (len(table) - 1, b"\x02")))
    with pytest.raises(CodecError, match="cells starting at message"):
        decode_batch(forge(table, (len(table) - 12, (253).to_bytes(8, "little"))))
    rows_field = 84  # after the identities, epoch, encoding, integer size and width
    with pytest.raises(CodecError, match=r"expected a multiple of .* for 6 rows"):
        decode_batch(forge(slots, (rows_field, (6).to_bytes(4, "little"))))
    with pytest.raises(
        CodecError, match=("bytes for 0 cells and messages of width 1; expected 1, 2")
    ):
        decode_batch(forge(table, (rows_field, bytes(4))))
