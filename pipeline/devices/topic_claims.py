"""Bind a producer, in the producer's own file, to the topic with which it started.

A producer that mixed the values of two inputs would report changes that never happened. Every input
except the first is therefore rejected.
"""

from __future__ import annotations

from typing import Final

from dpstream.pipeline.devices.bad_rows import InputError
from dpstream.pipeline.devices.columns import Placing
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.input_formats import InputFormat

_TOPIC: Final = "input_topic"
_MADE: Final = "input_topic_made"
_PLACING: Final = "input_placing"


def claim_topic(producer: Producer, topic: str, made: str | None) -> None:
    """Bind a producer to a topic, or check that it is already bound to this topic.

    `topic` is the name of the topic, preceded by its cluster's name if that is not the job's
    cluster. `made` distinguishes the topic from an earlier topic with the same name; None if
    unknown. Raises `InputError` if the producer has started with another input.
    """
    store = producer.store
    known, known_made = store.fact(_TOPIC), store.fact(_MADE)
    if known is None and producer.closed_epoch >= producer.first_epoch:
        raise InputError(
            f"producer {producer.name} started with an input that is not a topic, so the current "
            "values are unknown: use that input, or another --name"
        )
    if known not in (None, topic):
        raise InputError(
            f"producer {producer.name} started with topic {known!s} and stores its offsets: use "
            "that topic, or another --name"
        )
    if made is not None and known_made not in (None, made):
        raise InputError(
            f"topic {topic} was recreated after producer {producer.name} began to read it, so "
            "the stored offsets do not match: to read the new topic, use another --name"
        )
    store.set_fact(_TOPIC, topic)
    if made is not None:
        store.set_fact(_MADE, made)


def reject_reader_of_topic(producer: Producer) -> None:
    if producer.store.fact(_TOPIC) is not None:
        raise InputError(
            f"producer {producer.name} reads a topic: continue with --from-topic, or use "
            "another --name"
        )


def store_placing(producer: Producer, placing: Placing) -> None:
    producer.store.set_fact(_PLACING, placing.value)


def stored_placing(producer: Producer, input_format: InputFormat) -> Placing | None:
    """Return how a producer assigns events to epochs, or None before its first event.

    Raises `InputError` if `input_format` requires another placing.
    """
    known = producer.store.fact(_PLACING)
    if known is None:
        return None
    placing = Placing(str(known))
    stated = input_format.columns.placing
    if stated not in (None, placing):
        begun = "the timestamps of their records" if placing is Placing.ARRIVAL else placing.value
        raise InputError(
            f"producer {producer.name} assigns events to epochs by {begun}, but column "
            f"{stated}={input_format.columns.name_of(stated)} contradicts this: remove it, or use "
            "another --name"
        )
    return placing
