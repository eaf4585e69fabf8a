"""Open windows: which records of a producer belong together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dpstream.pipeline.stages.multisets import WordMultiset
from dpstream.pipeline.stages.windows import Drawing, PunctuationError, Window
from dpstream.topics.batches import Batch, Punctuation, batch_id
from dpstream.topics.word_forms import WordForm
from dpstream.topics.words import Words

FORM = WordForm(np.dtype("u1"))
ONE, OTHER = b"drawing1", b"drawing2"
PRODUCER = bytes(16)


def window() -> Window:
    return Window(1, 0.0, lambda: WordMultiset(FORM))


def batch(drawing: bytes, index: int, word: int) -> Batch:
    """A batch of one report."""
    words = Words(np.array([[word]], np.uint8))
    return Batch(bytes(16), bytes(16), batch_id(drawing, index), PRODUCER, 1, words)


def punctuation(drawing: bytes, batches: int, contributors: int) -> Punctuation:
    return Punctuation(bytes(16), bytes(16), PRODUCER, 1, batches, contributors, 9, drawing)


def words_of(window: Window) -> list[int]:
    words = window.words.sorted()
    counts = np.ones(words.rows, np.uint32) if words.counts is None else words.counts
    repeated: list[int] = np.repeat(words.values[:, 0], counts).tolist()
    return repeated


def test_a_drawing_is_not_ended_by_what_another_one_said() -> None:
    one = window()
    assert one.add(punctuation(OTHER, 1, 4))
    assert one.add(batch(ONE, 0, 7))
    assert one.complete(PRODUCER) is None
    assert one.add(punctuation(ONE, 1, 5))
    assert one.complete(PRODUCER) == punctuation(ONE, 1, 5)
    assert (words_of(one), one.contributors, one.messages) == ([7], 5, 1)


def test_a_batch_that_comes_again_before_its_producer_is_in_counts_once() -> None:
    one = window()
    assert one.add(batch(ONE, 0, 7))
    assert not one.add(batch(ONE, 0, 7))
    assert one.add(batch(ONE, 1, 8))
    assert one.add(punctuation(ONE, 2, 5))
    assert (words_of(one), one.messages) == ([7, 8], 2)


def test_what_another_drawing_sends_once_one_is_in_is_a_duplicate() -> None:
    one = window()
    assert one.add(batch(OTHER, 0, 8))
    assert one.add(batch(ONE, 0, 7))
    assert one.add(punctuation(ONE, 1, 5))
    late: list[Batch | Punctuation] = [
        batch(OTHER, 1, 9),
        punctuation(OTHER, 2, 4),
        batch(ONE, 0, 7),
        punctuation(ONE, 1, 5),
    ]
    for record in late:
        assert not one.add(record)
    assert (words_of(one), one.contributors, one.messages) == ([7], 5, 1)


def test_a_drawing_that_contradicts_itself_is_refused() -> None:
    one = window()
    one.add(punctuation(ONE, 2, 5))
    assert not one.add(punctuation(ONE, 2, 5))
    with pytest.raises(PunctuationError, match="second punctuation differs"):
        one.add(punctuation(ONE, 2, 4))
    one.add(batch(ONE, 0, 7))
    one.add(batch(ONE, 1, 8))
    assert one.complete(PRODUCER) is not None
    with pytest.raises(PunctuationError, match="second punctuation differs"):
        one.add(punctuation(ONE, 3, 5))


def test_more_batches_than_announced_are_refused() -> None:
    one = window()
    one.add(batch(OTHER, 0, 1))
    one.add(batch(OTHER, 1, 1))
    # How many another drawing has does not matter.
    one.add(punctuation(ONE, 1, 5))
    with pytest.raises(PunctuationError, match="announces 1 batches and has sent 2"):
        one.add(punctuation(OTHER, 1, 5))


def test_a_producer_with_nothing_to_report_is_in() -> None:
    one = window()
    assert one.add(punctuation(ONE, 0, 5))
    assert one.complete(PRODUCER) == punctuation(ONE, 0, 5)
    assert words_of(one) == []


@pytest.mark.parametrize("order", ["batches first", "punctuation first"])
def test_a_record_costs_the_same_however_many_drawings_its_producer_has_begun(
    monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """A registered producer that lies begins another drawing with every batch."""
    looked = Counter[str]()

    def count_drawings(self: Drawing) -> bool:
        looked["drawings"] += 1
        return self.punctuation is not None and len(self.batches) == self.punctuation.batches

    class CountedMultiset(WordMultiset):
        @property
        def held_bytes(self) -> int:
            looked["multisets"] += 1
            return super().held_bytes

    monkeypatch.setattr(Drawing, "whole", property(count_drawings))
    one, most = Window(1, 0.0, lambda: CountedMultiset(FORM)), Counter[str]()
    for drawing in range(200):
        name = drawing.to_bytes(8, "big")
        records: list[Batch | Punctuation] = [batch(name, 0, 7), punctuation(name, 2, 5)]
        for record in records if order == "batches first" else reversed(records):
            looked.clear()
            assert one.add(record)
            most |= looked
    assert most == {"drawings": 1, "multisets": 2}


def test_memory_held_is_that_of_all_multisets_there_are() -> None:
    records: list[Batch | Punctuation] = [
        *(batch(drawing, index, 7 + index) for drawing in (ONE, OTHER) for index in range(3)),
        punctuation(OTHER, 4, 4),
        punctuation(ONE, 3, 5),
        batch(OTHER, 3, 9),
    ]
    one = window()
    for record in records:
        one.add(record)
        drawings = one.contributions[PRODUCER].drawings.values()
        multisets = [one.words, *(drawing.words for drawing in drawings)]
        assert one.held_bytes == sum(each.held_bytes for each in multisets)
    assert one.held_bytes > 0
    one.drop_words()
    assert one.held_bytes == 0
