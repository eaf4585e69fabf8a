"""Test that a multiset of reports has one encoding and can be split to fit records."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from dpstream.topics.frames import MESSAGES_CAP, RECORD_CAP, U4_MAX, CodecError, OversizedError
from dpstream.topics.manifests import Manifest, WindowStatus, decode_manifest, encode_manifest
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import Messages, pack_messages, split_messages

DTYPES = [np.dtype(code) for code in ("<u1", "<u2", "<u4", "<u8")]


@st.composite
def plain_values(draw: st.DrawFn) -> NDArray[np.unsignedinteger]:
    dtype: np.dtype[np.unsignedinteger] = draw(st.sampled_from(DTYPES))
    shape = (draw(st.integers(0, 30)), draw(st.integers(1, 3)))
    highest = draw(st.sampled_from([1, 3, 256**dtype.itemsize - 1]))
    return draw(npst.arrays(dtype, shape, elements=st.integers(0, highest)))


def _multiset(words: Messages) -> Counter[tuple[int, ...]]:
    counts = [1] * words.rows if words.counts is None else words.counts.tolist()
    multiset: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(words.values.tolist(), counts, strict=True):
        multiset[tuple(row)] += count
    return multiset


@given(plain_values(), st.randoms())
def test_canonical_form_depends_only_on_the_multiset(
    values: NDArray[np.unsignedinteger], random: Random
) -> None:
    order = list(range(len(values)))
    random.shuffle(order)
    canonical = Messages.canonical(values)
    assert pack_messages(canonical) == pack_messages(Messages.canonical(values[order]))
    assert _multiset(canonical) == _multiset(Messages(values))
    assert canonical.messages == len(values)
    rows = canonical.values.tolist()
    assert rows == sorted(rows)


@given(plain_values().filter(lambda values: values.shape[1] == 1 and values.itemsize <= 2))
def test_table_of_counts_has_the_same_canonical_form(values: NDArray[np.unsignedinteger]) -> None:
    table = np.bincount(values[:, 0], minlength=1 << 8 * values.itemsize)
    from_table = Messages.from_counts(table)
    assert from_table.values.dtype == values.dtype
    assert pack_messages(from_table) == pack_messages(Messages.canonical(values))


def test_rows_are_ordered_numerically_by_the_first_column() -> None:
    values = np.array([[2, 1], [256, 0], [1, 300], [1, 7], [2, 0]], np.uint16)
    expected = [[1, 7], [1, 300], [2, 0], [2, 1], [256, 0]]
    assert Messages.canonical(values).values.tolist() == expected


@given(plain_values(), st.booleans(), st.integers(1, 60))
def test_chunks_fit_a_record_and_lose_no_message(
    values: NDArray[np.unsignedinteger], canonical: bool, payload_bytes: int
) -> None:
    words = Messages.canonical(values) if canonical else Messages(values)
    chunks = split_messages(words, payload_bytes)
    assert sum((_multiset(chunk) for chunk in chunks), Counter()) == _multiset(words)
    assert np.array_equal(np.concatenate([chunk.values for chunk in chunks]), words.values)
    assert all(chunk.nbytes <= payload_bytes or chunk.rows == 1 for chunk in chunks)
    assert len({chunk.rows for chunk in chunks[:-1]}) <= 1
    assert all(0 < chunk.rows <= chunks[0].rows for chunk in chunks[1:])


def test_counts_beyond_four_bytes_are_split_into_layers() -> None:
    table = np.array([3, 2 * U4_MAX + 5, 0, U4_MAX, U4_MAX + 1])
    words = Messages.from_counts(table)
    assert words.messages == table.sum()
    with pytest.raises(CodecError, match="use split_messages"):
        pack_messages(words)
    chunks = split_messages(words)
    assert [chunk.counts.tolist() for chunk in chunks if chunk.counts is not None] == [
        [3, U4_MAX, U4_MAX, U4_MAX],
        [U4_MAX, 1],
        [5],
    ]
    for chunk in chunks:
        pack_messages(chunk)
    assert sum((_multiset(chunk) for chunk in chunks), Counter()) == _multiset(words)


def test_messages_above_the_record_limit_are_split() -> None:
    table = np.full(1000, 3 * 2**30)
    words = Messages.from_counts(table)
    with pytest.raises(CodecError, match=f"exceed the maximum for a record, {MESSAGES_CAP}"):
        pack_messages(words)
    chunks = split_messages(words)
    assert all(pack_messages(chunk)[0][-1] <= MESSAGES_CAP for chunk in chunks)
    assert sum((_multiset(chunk) for chunk in chunks), Counter()) == _multiset(words)


def test_oversized_messages_are_rejected_before_copying() -> None:
    endless = np.broadcast_to(np.zeros((), np.uint64), (2**40, 1))
    with pytest.raises(
        OversizedError, match=f"the maximum for a record, {RECORD_CAP}: use split_messages"
    ):
        pack_messages(Messages(endless))


def _counted(values: list[list[int]], counts: list[int]) -> Messages:
    return Messages(np.array(values, np.uint8), np.array(counts, np.uint32))


def test_invalid_messages_are_rejected() -> None:
    with pytest.raises(CodecError, match="are int64; expected unsigned little-endian"):
        Messages(np.zeros((1, 1), np.int64))
    with pytest.raises(CodecError, match="expected unsigned little-endian"):
        Messages(np.zeros((1, 1), ">u2"))
    for shape in [(3,), (3, 0), (1, 2**16), (1, 1, 1)]:
        with pytest.raises(CodecError, match=r"expected \(rows, 1 to"):
            Messages(np.zeros(shape, np.uint8))
    with pytest.raises(CodecError, match="counts are int64"):
        Messages(np.zeros((1, 1), np.uint8), np.ones(1, np.int64))
    with pytest.raises(CodecError, match=r"counts of shape \(2,\) do not match 1 rows"):
        _counted([[1]], [1, 1])
    with pytest.raises(CodecError, match="a count is 0"):
        _counted([[1], [2]], [1, 0])
    for rows in ([[2], [1]], [[1], [1]], [[1, 5], [1, 5]], [[1, 5], [1, 4]], [[2, 0], [1, 9]]):
        with pytest.raises(CodecError, match="must be distinct and in increasing order"):
            _counted(rows, [1, 1])


@pytest.mark.parametrize("copies", [1, 2])
def test_wide_rows_with_equal_first_columns_are_sorted_by_all_columns(copies: int) -> None:
    rng = np.random.default_rng(1)
    for alike in range(9):
        values = rng.integers(0, 3, (50, 9)).astype("<u8")
        values[:, :alike] = 7
        ordered = Messages.canonical(np.repeat(values, copies, axis=0))
        rows = np.repeat(ordered.values, 1 if ordered.counts is None else ordered.counts, axis=0)
        assert rows.tolist() == sorted(np.repeat(values, copies, axis=0).tolist())


def test_report_size_is_width_times_integer_size() -> None:
    assert MessageFormat(np.dtype("<u8"), width=5).report_bytes == 40
    assert str(MessageFormat(np.dtype("<u4"))) == "1 x uint32"


@pytest.mark.parametrize("distinct", [1, 255, 256])
def test_message_format_can_limit_the_number_of_distinct_messages(distinct: int) -> None:
    assert MessageFormat(np.dtype("u1"), distinct=distinct).distinct == distinct


@pytest.mark.parametrize(
    "arguments",
    [
        ("<i4",),
        ("<f8",),
        (">u4",),
        ("?",),
        ("u1", 0),
        ("u1", 1, 0),
        ("u1", 1, 257),
        ("u1", 2, 3),
    ],
)
def test_invalid_message_formats_are_rejected(arguments: tuple[Any, ...]) -> None:
    dtype, *others = arguments
    with pytest.raises(ValueError, match=r"reports have|'distinct' is"):
        MessageFormat(np.dtype(dtype), *others)


def manifest(populations: object, population: int) -> Manifest:
    inside = np.ones(len(populations), np.bool_)  # type: ignore[arg-type]
    return Manifest(
        bytes(16), bytes(16), 1, WindowStatus.RELEASED,
        0, 1, 1, inside, populations, 1, population, 0,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("make", [list, np.array, lambda values: np.array(values, object)])
def test_manifest_population_out_of_range_is_rejected(make: object) -> None:
    assert callable(make)
    for values, problem in (
        ([1, -1], "smallest population is -1"),
        ([U4_MAX + 1, 1], f"largest population is {U4_MAX + 1}"),
        ([U4_MAX] * 3, f"'population' is {3 * U4_MAX - 1}; expected {3 * U4_MAX}"),
    ):
        with pytest.raises(CodecError, match=problem):
            manifest(make(values), sum(values) - 1)
    most = manifest(make([U4_MAX] * 3), 3 * U4_MAX)
    assert most == manifest((U4_MAX,) * 3, 3 * U4_MAX)
    assert decode_manifest(encode_manifest(most)) == most
