"""Sentences about what a device computes from its user's events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dpstream.randomizers.client.events import DeviceEvents, PrivateAttribute
from dpstream.randomizers.equal_buckets import EqualBuckets, number_text
from dpstream.randomizers.measures import Measure

Span = Callable[[int], str]
"""Function that returns the length of a number of epochs as text, such as "28 days"."""


def measure_sentence(measure: Measure, span: Span) -> str:
    """Return what a measure tells about the user, as a sentence.

    >>> searches = Measure("days", 28, ("search",), buckets=(0, 1, 2, 5))
    >>> measure_sentence(searches, "{} days".format)
    'On how many of the last 28 days you used search, as one of: 0, 1, 2 to 4, 5 and more.'
    """
    length, used = span(measure.within), _used(measure.event)
    window = f"the last {length if ' and ' in length else length.removeprefix('1 ')}"
    match measure.type:
        case "active":
            return f"Whether {used} in {window}."
        case "count":
            what = f"How often {used} in {window}"
        case "days":
            days = window.endswith(" days") and " and " not in window
            what = f"On how many {f'of {window}' if days else f'days of {window}'} {used}"
        case "sum":
            what = f"The sum of {measure.number} when {used} in {window}"
        case "max":
            what = f"The largest {measure.number} when {used} in {window}"
        case "last":
            what = f"The latest {measure.number or measure.label} when {used} in {window}"
        case "most":
            what = f"The most frequent {measure.label} when {used} in {window}"
        case "steps":
            what = f"The last step that you reached in {window}, in this order"
        case "lifecycle":
            return (
                f"Whether you never {used.removeprefix('you ')}, did so for the first time less "
                f"than {length} ago (new), came back less than {length} ago after a longer pause "
                f"(resurrected), stayed away for {length} (dormant), or none of these (retained)."
            )
    return f"{what}, {_answer(measure)}."


def event_sentences(events: DeviceEvents, span: Span) -> Iterator[str]:
    """Yield all sentences about measures and attributes, in the order of the questions."""
    yield (
        "The app records on this device what the user does. Each time, the device computes the "
        "following from it, and sends a randomized answer:"
    )
    for measure in events.measures.values():
        yield measure_sentence(measure, span)
    for attribute in events.private:
        yield f"Hidden in the answer as well: {_of_private(attribute)}."
    if len(events.questions) > 1:
        yield (
            f"The device answers one of {len(events.questions)} questions. Which one is drawn at "
            "random, and visible to everyone."
        )
    for each in events.public:
        yield f"Visible to everyone: your {each.name}, as one of: {', '.join(each.values)}."
    if events.public:
        yield "A change of what is visible counts only from the next round on, if there is one."


def _of_private(attribute: PrivateAttribute) -> str:
    if attribute.column is None:
        return f"when {_used(attribute.event)} for the first time"
    values = ", ".join(("none", *attribute.labels, "other"))
    later = f", or one that is named later ({attribute.spare} at most)" if attribute.spare else ""
    return f"your {attribute.name}, as one of: {values}{later}"


def _used(events: Sequence[str]) -> str:
    return f"you used {' or '.join(events) or 'the app'}"


def _answer(measure: Measure) -> str:
    if measure.at_least is not None:
        return f"only as whether it is at least {number_text(measure.at_least)}"
    if measure.mean is not None:
        low, high = number_text(measure.mean.low), number_text(measure.mean.high)
        return f"only as whether it is above a random number between {low} and {high}"
    if isinstance(measure.buckets, EqualBuckets):
        low, high = number_text(measure.buckets.low), number_text(measure.buckets.high)
        return f"as one of {measure.buckets.count} equal ranges from {low} to {high}"
    none = ("none",) if measure.can_be_none else ()
    return f"as one of: {', '.join((*none, *measure.labels))}"
