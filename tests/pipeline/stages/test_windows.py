"""Test how records are assigned to open windows and attempts, and sets of epochs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpstream.pipeline.stages.attempts import Attempts
from dpstream.pipeline.stages.epoch_sets import EpochSet
from dpstream.pipeline.stages.multisets import MessageMultiset
from dpstream.pipeline.stages.window_states import (
    OPEN,
    TRANSITIONS,
    Event,
    Reaction,
    State,
    after_decision,
    next_state,
)
from dpstream.pipeline.stages.windows import PunctuationError, Window
from dpstream.topics.batches import Batch, Punctuation, batch_id
from dpstream.topics.chunks import Chunk
from dpstream.topics.manifests import MANIFEST_STATUSES, WindowStatus
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import Messages

FORM = MessageFormat(np.dtype("u1"))
ONE, OTHER = b"drawing1", b"drawing2"
PRODUCER = bytes(16)


def window() -> Window:
    return Window(1, 0.0, lambda: MessageMultiset(FORM))


def batch(drawing: bytes, index: int, word: int) -> Batch:
    words = Messages(np.array([[word]], np.uint8))
    return Batch(bytes(16), bytes(16), batch_id(drawing, index), PRODUCER, 1, words)


def punctuation(drawing: bytes, batches: int, contributors: int) -> Punctuation:
    return Punctuation(bytes(16), bytes(16), PRODUCER, 1, batches, contributors, 9, drawing)


def messages_of(window: Window) -> list[int]:
    words = window.words.sorted()
    counts = np.ones(words.rows, np.uint32) if words.counts is None else words.counts
    repeated: list[int] = np.repeat(words.values[:, 0], counts).tolist()
    return repeated


def test_draw_is_completed_only_by_its_own_punctuation() -> None:
    one = window()
    assert one.add(punctuation(OTHER, 1, 4))
    assert one.add(batch(ONE, 0, 7))
    assert one.complete(PRODUCER) is None
    assert one.add(punctuation(ONE, 1, 5))
    assert one.complete(PRODUCER) == punctuation(ONE, 1, 5)
    assert (messages_of(one), one.contributors, one.messages) == ([7], 5, 1)


def test_repeated_batch_counts_once() -> None:
    one = window()
    assert one.add(batch(ONE, 0, 7))
    assert not one.add(batch(ONE, 0, 7))
    assert one.add(batch(ONE, 1, 8))
    assert one.add(punctuation(ONE, 2, 5))
    assert (messages_of(one), one.messages) == ([7, 8], 2)


def test_records_after_a_complete_draw_are_duplicates() -> None:
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
    assert (messages_of(one), one.contributors, one.messages) == ([7], 5, 1)


def test_contradictory_punctuation_of_a_draw_is_rejected() -> None:
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


def test_more_batches_than_announced_are_rejected() -> None:
    one = window()
    one.add(batch(OTHER, 0, 1))
    one.add(batch(OTHER, 1, 1))
    # The number of batches of another draw does not matter.
    one.add(punctuation(ONE, 1, 5))
    with pytest.raises(PunctuationError, match="announces 1 batches but sent 2"):
        one.add(punctuation(OTHER, 1, 5))


ID = bytes(16)


def chunk(index: int, total: int) -> Chunk:
    return Chunk(ID, ID, 1, 0, ID, index, total, Messages(np.ones((2, 1), np.uint8)))


def test_contradictory_chunk_is_rejected_without_effect() -> None:
    added: list[int] = []
    attempts = Attempts(lambda: added, lambda content, each: content.append(each.index))
    assert attempts.take_in(5, chunk(0, 3)) is None
    for total in (1, 2, 4):
        with pytest.raises(ValueError, match=f"total chunks: got {total}; .* states 3"):
            attempts.take_in(6, chunk(0 if total == 1 else 1, total))
    assert added == [0]
    assert attempts.take_in(7, chunk(1, 3)) is None
    assert attempts.take_in(8, replace(chunk(0, 2), attempt=b"\1" * 16)) is None
    done = attempts.take_in(9, chunk(2, 3))
    assert done is not None
    assert (done.first_offset, done.indices) == (5, {0, 1, 2})


def test_memory_for_finished_epochs_stays_small_over_many_epochs() -> None:
    tested = EpochSet()
    for epoch in range(1, 100_001):
        tested.add(epoch ^ 1 if epoch < 100_000 else epoch)
    assert len(tested._starts) <= 2


def reached_from(state: State) -> set[State]:
    reached, unseen = {state}, [state]
    while unseen:
        after = {target for target, _ in TRANSITIONS[unseen.pop()].values()} - reached
        reached |= after
        unseen += after
    return reached


def test_every_window_state_has_transitions_and_is_reachable() -> None:
    assert set(TRANSITIONS) == set(State)
    assert reached_from(State.COLLECTING) == set(State)


def test_finalized_window_never_reopens() -> None:
    for state in set(State) - OPEN:
        assert not reached_from(state) & OPEN


@pytest.mark.parametrize("state", [State.COLLECTING, State.IN_GRACE, State.CLOSING])
def test_every_outcome_can_be_reached_from_an_open_window(state: State) -> None:
    assert next_state(state, Event.SETTLED)[1] is Reaction.DECIDE
    assert next_state(state, Event.DRAINED)[1] is Reaction.DECIDE
    assert next_state(state, Event.COMPLETE)[1] is Reaction.DECIDE_IF_COMPLETE
    assert next_state(state, Event.RELEASED) == (State.PENDING, Reaction.WRITE)
    for suppressed in (Event.SUPPRESSED, Event.EMPTY):
        assert next_state(state, suppressed) == (State.SUPPRESSED, Reaction.NOTHING)


def test_only_released_windows_write_messages() -> None:
    assert {
        after_decision(window_status) is Reaction.WRITE: window_status
        for window_status in MANIFEST_STATUSES
    } == {
        True: WindowStatus.RELEASED,
        False: WindowStatus.EMPTY,
    }
    written = {
        (state, event)
        for state, event in product(State, Event)
        if TRANSITIONS[state].get(event, (None, None))[0] is State.WRITTEN
    }
    assert written == {(State.PENDING, Event.WORDS_WRITTEN)}


def test_impossible_transitions_are_rejected() -> None:
    with pytest.raises(ValueError, match="event GRACE_OVER cannot occur in state COLLECTING"):
        next_state(State.COLLECTING, Event.GRACE_OVER)
