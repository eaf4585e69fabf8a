"""What a producer that reads a topic has begun with, in its own file: it goes on with that alone.

A producer whose values come of two inputs would report changes that nobody made: whoever gives it
another input than it has begun with is refused.
"""

from __future__ import annotations

from typing import Final

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.columns import Placing
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.input_forms import InputForm

_TOPIC: Final = "input_topic"
_MADE: Final = "input_topic_made"
_PLACING: Final = "input_placing"


def claim_topic(producer: Producer, topic: str, made: str | None) -> None:
    """Make a topic the one of a producer, or see that it is.

    Args:
        producer: that is to read it.
        topic: its name, with that of its cluster if it is another one.
        made: what tells it from one of the same name that was made before it; None if that is not
            known.

    Raises:
        InputError: it has begun with another input.
    """
    store = producer.store
    known, known_made = store.fact(_TOPIC), store.fact(_MADE)
    if known is None and producer.closed_epoch >= producer.first_epoch:
        raise InputError(
            f"producer {producer.name} has begun with another input than a topic, and the values "
            "that hold are not known: give that input, or another --name"
        )
    if known not in (None, topic):
        raise InputError(
            f"producer {producer.name} has begun with topic {known!s}, whose offsets it keeps: "
            "give that one, or another --name"
        )
    if made is not None and known_made not in (None, made):
        raise InputError(
            f"{topic} has been made anew since producer {producer.name} has begun with it, and the "
            "offsets that it keeps are not those of this one: give another --name, which begins "
            "with it"
        )
    store.set_fact(_TOPIC, topic)
    if made is not None:
        store.set_fact(_MADE, made)


def refuse_reader_of_topic(producer: Producer) -> None:
    """See that a producer may be given another input than a topic.

    Raises:
        InputError: it has begun with a topic.
    """
    if producer.store.fact(_TOPIC) is not None:
        raise InputError(
            f"producer {producer.name} reads a topic: go on by --from-topic, or give another --name"
        )


def keep_placing(producer: Producer, placing: Placing) -> None:
    """Keep what places events; in the caller's transaction."""
    producer.store.set_fact(_PLACING, placing.value)


def kept_placing(producer: Producer, form: InputForm) -> Placing | None:
    """What places the events of a producer; None where it has read none.

    Raises:
        InputError: the form says that something else does.
    """
    known = producer.store.fact(_PLACING)
    if known is None:
        return None
    placing = Placing(str(known))
    stated = form.columns.placing
    if stated not in (None, placing):
        begun = "the timestamps of their records" if placing is Placing.ARRIVAL else placing.value
        raise InputError(
            f"producer {producer.name} has begun with events that are placed by {begun}, and "
            f"column {stated}={form.columns.name_of(stated)} says otherwise: leave it out, "
            "or give another --name"
        )
    return placing
