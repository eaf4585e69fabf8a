"""A window's multiset: all that was added, nothing of the order, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from io import BytesIO
from itertools import product
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.pipeline.actions import Action, Rest, Steps, carry_out
from dpstream.pipeline.stages import multisets, sorted_runs
from dpstream.pipeline.stages.boxes_of_windows import distinct
from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.ordered_pieces import Pieces
from dpstream.pipeline.stages.raw_stage import MEMORY_HELD
from dpstream.pipeline.stages.sorted_runs import SortedRuns
from dpstream.pipeline.stages.tagged_contents import TaggedContents
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.word_forms import WordForm
from dpstream.topics.words import Words, pack_words, split_words

SHAPES = [("<u1", 1), ("<u2", 1), ("<u4", 1), ("<u8", 1), ("<u1", 3), ("<u4", 2)]
FORMS = [
    *(WordForm(np.dtype(dtype), width) for dtype, width in SHAPES),
    *(WordForm(np.dtype(dtype), distinct=6) for dtype in ("<u1", "<u2", "<u4", "<u8")),
]


def tally(words: Words) -> Counter[tuple[int, ...]]:
    counts = np.ones(words.rows, int) if words.counts is None else words.counts
    found: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(words.values.tolist(), counts.tolist(), strict=True):
        found[tuple(row)] += count
    return found


def in_one_go(steps: Steps[Pieces]) -> Pieces:
    """Nothing is asked in between but to let others have their turn."""

    def rest(action: Action) -> None:
        assert action == Rest()

    return carry_out(steps, rest)


def assert_pieces(found: Pieces, expected: list[Words]) -> None:
    def told(words: Words) -> tuple[object, object]:
        return words.values.tolist(), None if words.counts is None else words.counts.tolist()

    assert [*map(told, found.words)] == [*map(told, expected)]
    assert found.total == len(expected)


def written_out(words: Words) -> NDArray[np.unsignedinteger]:
    return np.repeat(words.values, words.occurrences.astype(np.intp), axis=0)


@st.composite
def additions(draw: st.DrawFn, form: WordForm) -> list[Words]:
    """Plain and counted words of few distinct values."""
    row = st.lists(st.integers(0, 5), min_size=form.width, max_size=form.width)
    parts = []
    for values in draw(st.lists(st.lists(row, max_size=20), max_size=6)):
        array = np.array(values, form.dtype).reshape(-1, form.width)
        parts.append(draw(st.sampled_from([Words(array), Words.canonical(array)])))
    return parts


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form}, {form.distinct}")
@given(
    data=st.data(),
    limit=st.sampled_from([16, 64, 1 << 22]),
    page=st.sampled_from([1, 8, 1 << 14]),
    payload=st.sampled_from([1, 12, 40]),
    most=st.sampled_from([20, 1 << 40]),
)
def test_holds_what_was_added_in_whatever_order(
    form: WordForm, limit: int, page: int, payload: int, most: int, data: st.DataObject
) -> None:
    parts = data.draw(additions(form))
    shuffled = data.draw(st.permutations(parts))
    expected: Counter[tuple[int, ...]] = sum((tally(part) for part in parts), Counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multisets, "_MEMORY_LIMIT", limit)
        patch.setattr(sorted_runs, "BLOCK_BYTES", limit)
        patch.setattr(multisets, "BLOCK_BYTES", limit)
        patch.setattr(sorted_runs, "PAGE_BYTES", page)
        patch.setattr(sorted_runs, "_COPIED_BYTES", 32)
        patch.setattr("dpstream.topics.words.MESSAGES_CAP", most)
        one, other, rest = (WordMultiset(form) for _ in range(3))
        for part in parts:
            one.add(part)
        for number, part in enumerate(shuffled):
            (other if number % 2 else rest).add(part)
        other.merge(rest)
        released = [one.sorted(), other.sorted()]
        assert_pieces(in_one_go(one.ordered(payload)), split_words(released[0], payload))
        if one.in_files:
            once = distinct(Words.canonical(written_out(released[0])))
            assert_pieces(in_one_go(one.once(payload)), split_words(once, payload))
        assert one.messages == other.messages == expected.total()
        assert rest.messages == 0
        pieces = in_one_go(one.permuted(seeded_generator(1), payload))
        permuted = [*pieces.words]
        assert len(permuted) == pieces.total
        rows = np.concatenate([each.values for each in permuted])
        assert tally(Words(rows)) == expected
        assert [each.rows for each in permuted] == [
            each.rows for each in split_words(Words(rows), payload)
        ]
        for multiset in (one, other, rest):
            multiset.close()
    assert tally(released[0]) == expected
    one_piece, other_piece = (pack_words(split_words(words)[0]) for words in released)
    assert one_piece == other_piece


@pytest.mark.parametrize("width", [2, 3])
def test_counted_words_of_several_columns_are_in_order_whoever_came_first(width: int) -> None:
    rows = np.array(list(product(range(3), repeat=width)), "<u2")
    counts = np.arange(len(rows), dtype=np.uint32) + 100
    for seed in (1, 2):
        multiset = WordMultiset(WordForm(np.dtype("<u2"), width))
        halves = np.array_split(seeded_generator(seed).permutation(len(rows)), 2)
        for part in map(np.sort, (*halves, *halves)):
            multiset.add(Words(rows[part], counts[part]))
        released = multiset.sorted()
        assert released.values.tolist() == rows.tolist()
        assert released.occurrences.tolist() == (2 * counts).tolist()
        multiset.close()


@pytest.mark.parametrize("block", [2, 4, 1 << 22])
def test_a_permutation_is_random(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every one of the 6 orders of three messages comes up as often as the others."""
    monkeypatch.setattr(multisets, "BLOCK_BYTES", block)
    multiset = WordMultiset(WordForm(np.dtype("<u2")), BytesIO)
    multiset.add(Words(np.array([[1], [2], [3]], "<u2")))
    generator = seeded_generator(5)

    def order() -> tuple[int, ...]:
        return tuple(
            word
            for each in in_one_go(multiset.permuted(generator)).words
            for word in each.values[:, 0]
        )

    orders = Counter(order() for _ in range(1_500))
    assert len(orders) == 6
    # Standard deviation 14.4; a false alarm at eight of them has probability below 1e-14.
    assert all(abs(count - 250) < 8 * 14.4 for count in orders.values())


def peak_memory(
    values: NDArray[np.unsignedinteger], parts: int, distinct: int | None = None
) -> int:
    multiset = WordMultiset(WordForm(values.dtype, values.shape[1], distinct))
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


def no_scratch() -> BinaryIO:
    raise AssertionError("words of which there are few need no scratch file")


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_wide_words_of_which_there_are_few_are_a_table(dtype: str) -> None:
    """Ten million Count-Min messages over 40,000 cells are 40,000 counts, and travel as such."""
    cells, parts = 40_000, 64
    form = WordForm(np.dtype(dtype), distinct=cells)
    values = np.arange(2 * cells, dtype=form.dtype)[::-1, None] % form.dtype.type(cells)
    assert peak_memory(values, parts, cells) < 4 << 20
    multiset = WordMultiset(form, no_scratch)
    for _ in range(parts):
        multiset.add(Words(values))
    released = multiset.sorted()
    assert released.counts is not None
    np.testing.assert_array_equal(released.values[:, 0], np.arange(cells))
    np.testing.assert_array_equal(released.counts, np.full(cells, 2 * parts))


def test_a_table_that_is_larger_than_what_was_added_waits_on_disk() -> None:
    """Many producers may hold a window each: none costs more memory than a few MiB."""
    form = WordForm(np.dtype("<u4"), distinct=1 << 24)
    values = np.arange(1 << 16, dtype=np.uint32)[:, None] * np.uint32(251)
    assert peak_memory(values, 200, form.distinct) < 16 << 20
    multiset = WordMultiset(form)
    for _ in range(20):
        multiset.add(Words(values))
    released = multiset.sorted()
    np.testing.assert_array_equal(released.values, values)
    assert released.messages == multiset.messages == 20 << 16
    multiset.close()


@pytest.mark.usefixtures("nothing_in_memory")
def test_windows_beyond_what_is_held_have_fewer_files_open_than_a_process_may() -> None:
    """An open file counts as memory, however little is in it; mostly 1,024 may be open."""
    multiset = WordMultiset(WordForm(np.dtype("<u8")))
    multiset.add(Words(np.zeros((1, 1), np.uint64)))
    contents = TaggedContents(1)
    contents.add(np.zeros(1, np.uint64), np.zeros((1, 1), np.uint8))
    contents.spill()
    assert multiset.in_files
    for held in (multiset, contents):
        assert 512 * held.held_bytes > MEMORY_HELD
        held.close()


@pytest.mark.parametrize("distinct", [None, 8])
@pytest.mark.parametrize("dtype", ["<u1", "<u8"])
def test_counts_are_not_written_out(dtype: str, distinct: int | None) -> None:
    """A few bytes may stand for 2^40 messages."""
    multiset = WordMultiset(WordForm(np.dtype(dtype), distinct=distinct))
    for _ in range(3):
        for piece in split_words(Words(np.array([[7]], dtype), np.array([2**40], np.uint64))):
            multiset.add(piece)
    multiset.add(Words(np.array([[6]], dtype), np.array([2**40], np.uint64)))
    assert multiset.messages == 4 * 2**40
    assert tally(multiset.sorted()) == {(7,): 3 * 2**40, (6,): 2**40}


class CountedFile(BytesIO):
    """Notes what is read of it.

    Attributes:
        reads: bytes of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.reads.append(len(data))
        return data


@pytest.mark.parametrize("alike", [False, True])
def test_a_merge_costs_what_its_rows_cost_however_many_runs_there_are(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page is read once, as many at a time as a block has; also of rows that are all one."""
    run, block, page, runs = 1 << 14, 1 << 15, 1 << 8, 64
    monkeypatch.setattr(sorted_runs, "BLOCK_BYTES", block)
    monkeypatch.setattr(sorted_runs, "PAGE_BYTES", page)
    file = CountedFile()
    held = SortedRuns(np.dtype("<u4"), 1, lambda: file)
    generator = seeded_generator(3)
    for _ in range(runs):
        held.add(generator.integers(0, 1 if alike else 1 << 32, (run // 4, 1), np.uint32))
    sizes, total, largest = [], 0, 0
    for words in held.distinct([]):
        sizes.append(words.rows)
        total += words.messages
        largest = max(largest, words.nbytes)
    assert total == runs * run // 4
    assert sum(file.reads) == runs * run
    blocks = runs * run // block
    assert len(file.reads) <= blocks * runs
    # The last row of a block is one of its own if the next does not go on with it.
    assert len(sizes) <= 2 * blocks
    assert largest <= 3 * (block + runs * page)


def test_few_different_words_take_little_memory_in_one_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages in crowds are put together as a whole: a million of a hundred different ones."""
    monkeypatch.setattr(multisets, "_MEMORY_LIMIT", 1 << 16)
    monkeypatch.setattr(sorted_runs, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(sorted_runs, "PAGE_BYTES", 1 << 10)
    multiset = WordMultiset(WordForm(np.dtype("<u1"), 2))
    rows = np.stack(np.divmod(np.arange(10_000) % 100, 10), axis=1).astype(np.uint8)
    for _ in range(100):
        multiset.add(Words(rows))
    assert multiset.in_files
    tracemalloc.start()
    released = multiset.sorted()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    multiset.close()
    assert released.counts is not None
    assert released.counts.tolist() == [10_000] * 100
    assert peak < 2_000_000 // 2
