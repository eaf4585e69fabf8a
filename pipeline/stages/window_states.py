"""State machine of a window at the worker that owns its partition, as one table.

* A window is opened by its first record, or without records if later epochs are decided.
* Raw records of an epoch join its window until a manifest decides the window. The first manifest in
  the log counts, from this worker or another.
* If the manifest releases the window, the owner must write its messages. Once they are written, the
  committed offset can pass the window's first record.
* If the manifest does not release the window, the epoch is finished.
* All later steps are a function of the manifest. A worker can therefore be killed, paused or
  duplicated in any state: repetitions are identical.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from dpstream.topics.manifests import WindowStatus


class State(Enum):
    COLLECTING = auto()
    """Records join the window; its time has not come yet."""

    IN_GRACE = auto()
    """The window's time has come, and its grace period is running; records still join."""

    CLOSING = auto()
    """The grace period has ended. Records join up to the partition's end at that time."""

    PENDING = auto()
    """The window is released, and writing its messages is pending."""

    WRITTEN = auto()
    """The window is released, and its messages are written."""

    SUPPRESSED = auto()
    """The window has too few contributors, or none; nothing is written."""

    FORGOTTEN = auto()
    """All producers in the window have been retired; the state is as if no record had arrived."""


class Event(Enum):
    FIRST_RECORD = auto()
    """Arrival of the window's first record."""

    TIME_HAS_COME = auto()
    """End of the epoch, by the calendar or by the punctuations of most producers."""

    TIME_WITHDRAWN = auto()
    """Epoch has not ended after all: a clock became known, or was set back."""

    COMPLETE = auto()
    """Completion of every expected producer or collector."""

    DRAINED = auto()
    """Closing of the window by an operator's drain."""

    GRACE_OVER = auto()
    """End of the grace period."""

    READ_TO_END = auto()
    """Completion of reading all records that the partition had at the end of the grace period."""

    SETTLED = auto()
    """Discovery of the epoch's manifest in the log."""

    ABANDONED = auto()
    """No record left from a producer that still reports for the epoch."""

    RELEASED = auto()
    """Release by the first manifest."""

    SUPPRESSED = auto()
    """Suppression by the first manifest: there are fewer contributors than the job's minimum."""

    EMPTY = auto()
    """First manifest without contributors."""

    WORDS_WRITTEN = auto()
    """Acknowledgement of the window's messages in the output topic."""


class Reaction(Enum):
    NOTHING = auto()
    START_GRACE = auto()
    STOP_GRACE = auto()
    FIND_END = auto()
    """Request the partition's end; records below it are not late."""
    DECIDE = auto()
    """Write a manifest unless the epoch has one, and continue under the first manifest."""
    DECIDE_IF_COMPLETE = auto()
    """Same as `DECIDE`, unless a producer has registered in the meantime."""
    FORGET = auto()
    WRITE = auto()
    """Write the window's messages, from memory or from the raw topic."""


_DECISIONS: Final[Mapping[Event, tuple[State, Reaction]]] = {
    Event.RELEASED: (State.PENDING, Reaction.WRITE),
    Event.SUPPRESSED: (State.SUPPRESSED, Reaction.NOTHING),
    Event.EMPTY: (State.SUPPRESSED, Reaction.NOTHING),
}


def _open(state: State) -> Mapping[Event, tuple[State, Reaction]]:
    """Return an open state's transitions that end the collection of records."""
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
    State.PENDING: {
        Event.WORDS_WRITTEN: (State.WRITTEN, Reaction.NOTHING),
    },
    State.WRITTEN: {},
    State.SUPPRESSED: {},
    State.FORGOTTEN: {},
}
"""Next state and reaction, by state and event; other combinations cannot occur."""

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
        raise ValueError(f"event {event.name} cannot occur in state {state.name}") from None


def after_decision(window_status: WindowStatus) -> Reaction:
    return _DECISIONS[Event[window_status.name]][1]
