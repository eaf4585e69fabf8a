"""Life of a window at the worker that owns its partition, as one table.

* A window is opened by its first record, or without one where later epochs are decided.
* Raw records of an epoch join its window until a manifest decides the window. The first manifest in
  the log decides, this worker's or another's.
* If it releases the window, writing its messages is pending at the owner. Once they are written,
  the committed offset may pass the window's first record.
* An epoch that is not released is finished with its manifest.
* Everything after the manifest is a function of it. A worker may therefore be killed, paused or
  doubled in any state: repetitions are identical.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from dpstream.topics.manifests import Fate


class State(Enum):
    """State of an epoch."""

    COLLECTING = auto()
    """Records join its window, and its time has not come."""

    IN_GRACE = auto()
    """Its time has come, and its grace period runs; records still join."""

    CLOSING = auto()
    """Its grace period is over. Records still join up to where its partition ended then."""

    OWED = auto()
    """It is released, and its words are to be written."""

    WRITTEN = auto()
    """It is released, and its words are written."""

    WITHHELD = auto()
    """It has too few contributors, or none: nothing is written."""

    FORGOTTEN = auto()
    """All its producers have left: it is as if nothing had arrived."""


class Event(Enum):
    """Event of an epoch."""

    FIRST_RECORD = auto()
    """The first record of a window that was opened without one."""

    TIME_HAS_COME = auto()
    """Its epoch has ended, by the calendar or by what most producers report."""

    TIME_WITHDRAWN = auto()
    """It has not: the calendar has become known, or the broker's clock was set back."""

    COMPLETE = auto()
    """Every expected producer or collector is in."""

    DRAINED = auto()
    """An operator's drain closes it."""

    GRACE_OVER = auto()
    """Its grace period has passed."""

    READ_TO_END = auto()
    """Everything is read that was in the partition when its grace period was over."""

    SETTLED = auto()
    """A manifest of its epoch is in the log."""

    ABANDONED = auto()
    """All that arrived is of producers that report for the epoch no more."""

    RELEASED = auto()
    """Its first manifest releases it."""

    TOO_SMALL = auto()
    """Its first manifest withholds it: it has fewer contributors than the job's minimum."""

    EMPTY = auto()
    """Its first manifest counts no contributor."""

    WORDS_WRITTEN = auto()
    """Its words are acknowledged by the topic after the stage."""


class Reaction(Enum):
    """Action of a worker in response."""

    NOTHING = auto()
    START_GRACE = auto()
    STOP_GRACE = auto()
    FIND_END = auto()
    """Ask where the partition ends: what is in the log by now is not late."""
    DECIDE = auto()
    """Write a manifest, unless another is there, and go on under the first one."""
    DECIDE_IF_COMPLETE = auto()
    """The same, unless a producer has registered meanwhile."""
    FORGET = auto()
    WRITE = auto()
    """Write its words, from the window or from what the topic holds."""


_DECISIONS: Final[Mapping[Event, tuple[State, Reaction]]] = {
    Event.RELEASED: (State.OWED, Reaction.WRITE),
    Event.TOO_SMALL: (State.WITHHELD, Reaction.NOTHING),
    Event.EMPTY: (State.WITHHELD, Reaction.NOTHING),
}


def _open(state: State) -> Mapping[Event, tuple[State, Reaction]]:
    """Return the transitions that end collecting, in any open state."""
    return {
        Event.COMPLETE: (state, Reaction.DECIDE_IF_COMPLETE),
        Event.DRAINED: (state, Reaction.DECIDE),
        Event.SETTLED: (state, Reaction.DECIDE),
        Event.ABANDONED: (State.FORGOTTEN, Reaction.FORGET),
        **_DECISIONS,
    }


TRANSITIONS: Final[Mapping[State, Mapping[Event, tuple[State, Reaction]]]] = {
    State.COLLECTING: {
        Event.FIRST_RECORD: (State.COLLECTING, Reaction.NOTHING),
        Event.TIME_HAS_COME: (State.IN_GRACE, Reaction.START_GRACE),
        Event.TIME_WITHDRAWN: (State.COLLECTING, Reaction.NOTHING),
        **_open(State.COLLECTING),
    },
    State.IN_GRACE: {
        Event.FIRST_RECORD: (State.IN_GRACE, Reaction.NOTHING),
        Event.TIME_HAS_COME: (State.IN_GRACE, Reaction.NOTHING),
        Event.TIME_WITHDRAWN: (State.COLLECTING, Reaction.STOP_GRACE),
        Event.GRACE_OVER: (State.CLOSING, Reaction.FIND_END),
        **_open(State.IN_GRACE),
    },
    State.CLOSING: {
        # The first record restarts the grace period.
        Event.FIRST_RECORD: (State.IN_GRACE, Reaction.NOTHING),
        Event.TIME_HAS_COME: (State.CLOSING, Reaction.NOTHING),
        Event.TIME_WITHDRAWN: (State.CLOSING, Reaction.NOTHING),
        Event.READ_TO_END: (State.CLOSING, Reaction.DECIDE),
        **_open(State.CLOSING),
    },
    State.OWED: {
        Event.WORDS_WRITTEN: (State.WRITTEN, Reaction.NOTHING),
    },
    State.WRITTEN: {},
    State.WITHHELD: {},
    State.FORGOTTEN: {},
}
"""What follows when an event happens in a state. A pair that is not here cannot happen."""

OPEN: Final = frozenset({State.COLLECTING, State.IN_GRACE, State.CLOSING})
"""States in which records join a window."""


def next_state(state: State, event: Event) -> tuple[State, Reaction]:
    """Return the next state and the reaction; raises `ValueError` for an impossible event.

    >>> next_state(State.IN_GRACE, Event.GRACE_OVER)
    (<State.CLOSING: 3>, <Reaction.FIND_END: 4>)
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise ValueError(f"{event.name} cannot happen to a window that is {state.name}") from None


def after_decision(fate: Fate) -> Reaction:
    """Return the owner's reaction to the status in an epoch's first manifest."""
    return _DECISIONS[Event[fate.name]][1]
