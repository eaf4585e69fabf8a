"""Test a window's multiset: complete, without order, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.pipeline.actions import Action, Steps, Yield, carry_out
from dpstream.pipeline.stages import multisets, sorted_runs
from dpstream.pipeline.stages.ciphertexts_of_windows import distinct
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.ordered_chunks import Chunks
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import Messages, pack_messages, split_messages

SHAPES = [("<u1", 1), ("<u2", 1), ("<u4", 1), ("<u8", 1), ("<u1", 3), ("<u4", 2)]
FORMS = [
    *(MessageFormat(np.dtype(dtype), width) for dtype, width in SHAPES),
    *(MessageFormat(np.dtype(dtype), distinct=6) for dtype in ("<u1", "<u2", "<u4", "<u8")),
]


def counts_by_row(words: Messages) -> Counter[tuple[int, ...]]:
    counts = np.ones(words.rows, int) if words.counts is None else words.counts
    by_row: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(words.values.tolist(), counts.tolist(), strict=True):
        by_row[tuple(row)] += count
    return by_row


def in_one_go(steps: Steps[Chunks]) -> Chunks:
    def yield_only(action: Action) -> None:
        assert action == Yield()

    return carry_out(steps, yield_only)


def assert_chunks(actual: Chunks, expected: list[Messages]) -> None:
    def content(words: Messages) -> tuple[object, object]:
        return words.values.tolist(), None if words.counts is None else words.counts.tolist()

    assert [*map(content, actual.words)] == [*map(content, expected)]
    assert actual.total == len(expected)


def written_out(words: Messages) -> NDArray[np.unsignedinteger]:
    return np.repeat(words.values, words.occurrences.astype(np.intp), axis=0)


@st.composite
def additions(draw: st.DrawFn, form: MessageFormat) -> list[Messages]:
    row = st.lists(st.integers(0, 5), min_size=form.width, max_size=form.width)
    parts = []
    for values in draw(st.lists(st.lists(row, max_size=20), max_size=6)):
        array = np.array(values, form.dtype).reshape(-1, form.width)
        parts.append(draw(st.sampled_from([Messages(array), Messages.canonical(array)])))
    return parts


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form}, {form.distinct}")
@settings(max_examples=50)
@given(
    data=st.data(),
    limit=st.sampled_from([16, 64, 1 << 22]),
    page=st.sampled_from([1, 8, 1 << 14]),
    payload=st.sampled_from([1, 12, 40]),
    most=st.sampled_from([20, 1 << 40]),
)
def test_multiset_is_independent_of_insertion_order(
    form: MessageFormat, limit: int, page: int, payload: int, most: int, data: st.DataObject
) -> None:
    parts = data.draw(additions(form))
    shuffled = data.draw(st.permutations(parts))
    expected: Counter[tuple[int, ...]] = sum((counts_by_row(part) for part in parts), Counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multisets, "_MEMORY_LIMIT", limit)
        patch.setattr(sorted_runs, "BLOCK_BYTES", limit)
        patch.setattr(multisets, "BLOCK_BYTES", limit)
        patch.setattr(sorted_runs, "PAGE_BYTES", page)
        patch.setattr(sorted_runs, "_COPIED_BYTES", 32)
        patch.setattr("dpstream.topics.messages.MESSAGES_CAP", most)
        one, other, rest = (MessageMultiset(form) for _ in range(3))
        for part in parts:
            one.add(part)
        for number, part in enumerate(shuffled):
            (other if number % 2 else rest).add(part)
        other.merge(rest)
        released = [one.sorted(), other.sorted()]
        assert_chunks(in_one_go(one.ordered(payload)), split_messages(released[0], payload))
        if one.in_files:
            once = distinct(Messages.canonical(written_out(released[0])))
            assert_chunks(in_one_go(one.once(payload)), split_messages(once, payload))
        assert one.messages == other.messages == expected.total()
        assert rest.messages == 0
        chunks = in_one_go(one.permuted(seeded_generator(1), payload))
        permuted = [*chunks.words]
        assert len(permuted) == chunks.total
        rows = np.concatenate([each.values for each in permuted])
        assert counts_by_row(Messages(rows)) == expected
        assert [each.rows for each in permuted] == [
            each.rows for each in split_messages(Messages(rows), payload)
        ]
        for multiset in (one, other, rest):
            multiset.close()
    assert counts_by_row(released[0]) == expected
    one_chunk, other_chunk = (pack_messages(split_messages(words)[0]) for words in released)
    assert one_chunk == other_chunk


@pytest.mark.parametrize("block", [2, 1 << 22])
def test_permutation_is_uniform(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multisets, "BLOCK_BYTES", block)
    multiset = MessageMultiset(MessageFormat(np.dtype("<u2")), BytesIO)
    multiset.add(Messages(np.array([[1], [2], [3]], "<u2")))
    generator = seeded_generator(5)

    def order() -> tuple[int, ...]:
        return tuple(
            word
            for each in in_one_go(multiset.permuted(generator)).words
            for word in each.values[:, 0]
        )

    orders = Counter(order() for _ in range(1_500))
    assert len(orders) == 6
    # The standard deviation is 14.4. The probability of a false alarm is below 1e-14.
    assert all(abs(count - 250) < 8 * 14.4 for count in orders.values())


def peak_memory(
    values: NDArray[np.unsignedinteger], parts: int, distinct: int | None = None
) -> int:
    multiset = MessageMultiset(MessageFormat(values.dtype, values.shape[1], distinct))
    tracemalloc.start()
    try:
        for _ in range(parts):
            multiset.add(Messages(values.copy()))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        multiset.close()


@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u8"])
def test_memory_is_independent_of_the_window_size(dtype: str) -> None:
    values = np.arange(8192, dtype=np.uint64).astype(dtype)[:, None]
    assert peak_memory(values, 2000) < 16 << 20


def test_sparse_table_is_stored_on_disk() -> None:
    form = MessageFormat(np.dtype("<u4"), distinct=1 << 24)
    values = np.arange(1 << 16, dtype=np.uint32)[:, None] * np.uint32(251)
    assert peak_memory(values, 200, form.distinct) < 16 << 20
    multiset = MessageMultiset(form)
    for _ in range(20):
        multiset.add(Messages(values))
    released = multiset.sorted()
    np.testing.assert_array_equal(released.values, values)
    assert released.messages == multiset.messages == 20 << 16
    multiset.close()
