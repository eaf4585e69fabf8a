"""Test the state table of a window."""

from __future__ import annotations

from itertools import product

import pytest

from dpstream.pipeline.stages.window_states import (
    OPEN,
    TRANSITIONS,
    Event,
    Reaction,
    State,
    after_decision,
    next_state,
)
from dpstream.topics.manifests import MANIFEST_STATUSES, WindowStatus


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
def test_open_window_can_reach_every_outcome(state: State) -> None:
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
