"""A window's multiset: all that was added, nothing of the order, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline import multisets
from pipeline.multisets import WordMultiset
from randomizers.randomness import seeded_generator
from topics.words import Words, pack_words, split_words

SHAPES = [("<u1", 1), ("<u2", 1), ("<u4", 1), ("<u8", 1), ("<u1", 3), ("<u4", 2)]


def tally(words: Words) -> Counter[tuple[int, ...]]:
    counts = np.ones(words.rows, int) if words.counts is None else words.counts
    found: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(words.values.tolist(), counts.tolist(), strict=True):
        found[tuple(row)] += count
    return found


@st.composite
def additions(draw: st.DrawFn, dtype: str, width: int) -> list[Words]:
    """Plain and counted words of few distinct values."""
    rows = st.lists(st.lists(st.integers(0, 5), min_size=width, max_size=width), max_size=20)
    parts = []
    for values in draw(st.lists(rows, max_size=6)):
        array = np.array(values, dtype).reshape(-1, width)
        parts.append(draw(st.sampled_from([Words(array), Words.canonical(array)])))
    return parts


@pytest.mark.parametrize(("dtype", "width"), SHAPES)
@given(data=st.data(), limit=st.sampled_from([16, 64, 1 << 22]))
def test_holds_what_was_added_in_whatever_order(
    dtype: str, width: int, limit: int, data: st.DataObject
) -> None:
    parts = data.draw(additions(dtype, width))
    shuffled = data.draw(st.permutations(parts))
    expected: Counter[tuple[int, ...]] = sum((tally(part) for part in parts), Counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multisets, "_MEMORY_LIMIT", limit)
        one, other, rest = (WordMultiset(np.dtype(dtype), width) for _ in range(3))
        for part in parts:
            one.add(part)
        for number, part in enumerate(shuffled):
            (other if number % 2 else rest).add(part)
        other.merge(rest)
        released = [one.sorted(), other.sorted()]
        assert one.messages == other.messages == expected.total()
        assert rest.messages == 0
        assert tally(one.permuted(seeded_generator(1))) == expected
        for multiset in (one, other, rest):
            multiset.close()
    assert tally(released[0]) == expected
    one_piece, other_piece = (pack_words(split_words(words)[0]) for words in released)
    assert one_piece == other_piece


def test_a_permutation_is_random() -> None:
    """Every one of the 6 orders of three messages comes up as often as the others."""
    multiset = WordMultiset(np.dtype("<u2"), 1)
    multiset.add(Words(np.array([[1], [2], [3]], "<u2")))
    generator = seeded_generator(5)
    orders = Counter(
        tuple(multiset.permuted(generator).values[:, 0].tolist()) for _ in range(12_000)
    )
    assert len(orders) == 6
    # Standard deviation 41; a false alarm at eight of them has probability below 1e-14.
    assert all(abs(count - 2000) < 8 * 41 for count in orders.values())


def peak_memory(values: NDArray[np.unsignedinteger], parts: int) -> int:
    multiset = WordMultiset(values.dtype, values.shape[1])
    tracemalloc.start()
    try:
        for _ in range(parts):
            multiset.add(Words(values.copy()))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        multiset.close()


@pytest.mark.parametrize("dtype", ["<u1", "<u2", "<u8"])
def test_memory_does_not_grow_with_the_window(dtype: str) -> None:
    values = np.arange(8192, dtype=np.uint64).astype(dtype)[:, None]
    assert peak_memory(values, 2000) < 16 << 20


@pytest.mark.parametrize("dtype", ["<u1", "<u8"])
def test_counts_are_not_written_out(dtype: str) -> None:
    """A few bytes may stand for 2^40 messages."""
    multiset = WordMultiset(np.dtype(dtype), 1)
    for _ in range(3):
        for piece in split_words(Words(np.array([[7]], dtype), np.array([2**40], np.uint64))):
            multiset.add(piece)
    assert multiset.messages == 3 * 2**40
    assert multiset.sorted().messages == 3 * 2**40
