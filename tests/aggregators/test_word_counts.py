"""A sorted multiset of words: whatever was added in whatever order, the same; and its bytes."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from dpstream.aggregators.word_counts import WordCounts

DTYPE = np.dtype("<u4")


@pytest.mark.parametrize("then", ["nothing", "words in between", "what was before"])
def test_words_in_increasing_order_are_counted_as_they_come(then: str) -> None:
    """As chunks of a window have them: a word may go on in the next one, and in many."""
    rng = np.random.default_rng(2)
    window = np.sort(np.concatenate([rng.integers(0, 2_000, 3_000), np.full(700, 1_000)]))
    window = window.astype(np.uint32)
    received, expected = WordCounts(DTYPE), Counter(window.tolist())
    for start in range(0, len(window), 50):
        piece = window[start : start + 50]
        values, counts = np.unique(piece, return_counts=True)
        plain = start % 100 == 0
        received.add(piece if plain else values, None if plain else counts.astype(np.uint32))
    assert received._rising
    if then == "words in between":
        received.add(np.array([1_500, 3, 3], np.uint32), None)
        expected.update([1_500, 3, 3])
    elif then == "what was before":
        assert received.messages == len(window)
        received.add(np.array([5_000], np.uint32), np.array([300], np.uint32))
        expected[5_000] = 300
    read, end = WordCounts.from_bytes(DTYPE, data := received.to_bytes(), 0)
    assert end == len(data)
    for each in (read, received):
        assert each.words.tolist() == sorted(expected)
        assert each.counts.tolist() == [expected[word] for word in sorted(expected)]
    assert received.to_bytes() == data


def test_words_of_eight_bytes_are_counted_to_the_largest() -> None:
    """In a table there is no room for it, whatever comes with it."""
    received = WordCounts(np.dtype("<u8"))
    largest = 2**64 - 1
    received.add(np.array([largest, 5, largest, 5, 4], np.uint64), None)
    assert received.words.tolist() == [4, 5, largest]
    assert received.counts.tolist() == [1, 2, 2]


def test_a_released_window_takes_little_more_memory_than_its_bytes() -> None:
    received, pieces = WordCounts(DTYPE), 300
    tracemalloc.start()
    for number in range(pieces):
        received.add(np.arange(number * 16_000, (number + 1) * 16_000, dtype=np.uint32), None)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1.1 * pieces * 16_000 * (4 + 1)


@pytest.mark.parametrize(("most", "size"), [(1, 1), (255, 1), (256, 2), (1 << 16, 4), (1 << 32, 8)])
def test_counts_take_as_many_bytes_as_the_largest_needs(most: int, size: int) -> None:
    received = WordCounts(DTYPE)
    received.add(np.array([9, 4], np.uint32), np.array([1, most], np.uint64))
    data = b"before" + received.to_bytes() + b"after"
    assert len(data) == 11 + 9 + 2 * (4 + size)
    read, end = WordCounts.from_bytes(DTYPE, data, 6)
    assert data[end:] == b"after"
    assert (read.words.tolist(), read.counts.tolist()) == ([4, 9], [most, 1])
    read.add(np.array([9], np.uint32), None)
    assert read.counts.tolist() == [most, 2]
