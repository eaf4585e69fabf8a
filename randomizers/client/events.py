"""Answers that a device computes from its own events, as stated in a job's statement.

A *question* is a measure, alone or together with private attributes. A device answers each question
with one integer per epoch, and the randomizer hides the answer. Public attributes are given on
joining and visible to everyone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from unicodedata import normalize

from dpstream.randomizers.client.device_errors import ValueRejectedError
from dpstream.randomizers.client.epoch_clock import EpochClock
from dpstream.randomizers.equal_buckets import EqualBuckets
from dpstream.randomizers.event_histories import EventHistory
from dpstream.randomizers.measures import MEAN_UNIT, OTHER, Measure

_MICROSECONDS: Final = 1000
PANELS: Final = ("panels", "sampled_panels", "shuffled_panels")
"""Protocols whose devices have an answer to each of several questions."""
_MOST_CELLS: Final = 4096


@dataclass(frozen=True, slots=True)
class PublicAttribute:
    """An attribute that everyone may know; `values` end with "other"."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrivateAttribute:
    """An attribute that is part of the hidden answer.

    Attributes:
        column: Column of events with the attribute's labels; None if it is the time of the first
            event.
        labels: Declared labels; others count as "other".
        cells: Number of values, including none and other, or never and earlier, and spare ones.
        event: Names of the events of which the first counts; () for all.
        periods: Start times of the periods in which the first event is; None with a column.
        spare: Number of values that can be named later.
        starts: First epoch of labels that were named while the job ran; earlier, they are "other".
    """

    name: str
    column: str | None
    labels: tuple[str, ...]
    cells: int
    event: tuple[str, ...] = ()
    periods: EpochClock | None = None
    spare: int = 0
    starts: Mapping[str, int] = field(default_factory=dict)

    @property
    def places(self) -> tuple[str, ...]:
        """The labels, and an empty text for each that can be named later: no label is empty."""
        return (*self.labels, *("",) * self.spare)

    def number(self, history: EventHistory, epoch: int) -> int:
        """Return the attribute's value at the end of an epoch, from 0, below `cells`."""
        if self.column is not None:
            label = history.latest(self.column, epoch)
            # Values start with "none" and "other"; histories number "other" last.
            return 1 if label > len(self.labels) else label + (label > 0)
        first = history.first(self.event, epoch)
        if first is None:
            return 0
        assert self.periods is not None
        period = self.periods.epoch_at(first[1] // _MICROSECONDS)
        return min(max(period, 0) + 1, self.cells - 1)


@dataclass(frozen=True, slots=True)
class DeviceQuestion:
    """A measure, alone or together with private attributes."""

    name: str
    measure: Measure
    private: tuple[PrivateAttribute, ...]

    @property
    def largest(self) -> int:
        """Largest answer; the smallest one is 0, or 1 with private attributes."""
        measure = self.measure
        if isinstance(measure.buckets, EqualBuckets):
            return measure.buckets.count
        own = MEAN_UNIT if measure.answer == "mean" else len(measure.labels) or 1
        if not self.private:
            return own
        return (1 + own) * math.prod(each.cells for each in self.private)

    def answer(self, history: EventHistory, epoch: int) -> int:
        """Return the answer for the last closed epoch.

        With private attributes it is 1 + the number that the answer of the measure and the values
        of the attributes form as digits.
        """
        number = history.answer(self.measure, epoch)
        if not self.private:
            return number
        for attribute in self.private:
            number = number * attribute.cells + attribute.number(history, epoch)
        return 1 + number


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Questions and attributes of a job.

    Attributes:
        several: True if a report has a value for each question, of which the randomizer uses one.
        sets: True if a value is a set of items.
    """

    questions: tuple[DeviceQuestion, ...]
    public: tuple[PublicAttribute, ...]
    private: tuple[PrivateAttribute, ...]
    several: bool
    sets: bool

    @classmethod
    def from_statement(cls, body: Mapping[str, Any]) -> DeviceEvents:
        """Parse the events of a statement.

        Raises `ValueError`, `KeyError` or `TypeError` if they are malformed, or do not match the
        values and the mechanism of the statement.
        """
        events, start, values, law = (
            body[key] if key != "start" else body["epochs"]["start"]
            for key in ("events", "start", "values", "law")
        )
        private = {_text(each["name"]): _private(each, start) for each in events["private"]}
        questions = tuple(
            DeviceQuestion(
                _text(each["name"]),
                Measure.from_json(each["measure"]),
                tuple(private[name] for name in each["private"]),
            )
            for each in events["questions"]
        )
        public = tuple(
            PublicAttribute(_text(each["name"]), _texts(each["values"]))
            for each in events["public"]
        )
        columns = [each.column for each in private.values() if each.column is not None]
        if len(set(columns)) < len(columns):
            raise ValueError("private attributes have the same column")
        several = body["protocol"] in PANELS
        fits = (
            law["groups"] == math.prod(len(each.values) for each in public)
            and len(law["questions"]) == len(questions)
            if several
            else len(questions) == 1 and not public and questions[0].largest == values["size"] - 1
        )
        if not fits:
            raise ValueError("the mechanism does not fit the measures and attributes")
        return cls(questions, public, tuple(private.values()), several, values["slots"] is not None)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """Measures by name, in the order of the questions."""
        return {question.name: question.measure for question in self.questions}

    def history(self, saved: Mapping[str, Any] | None) -> EventHistory:
        """Return the history with the contents of `EventHistory.to_json`, or an empty one."""
        history = EventHistory(
            self.measures.values(),
            {each.column: each.places for each in self.private if each.column is not None},
            dict.fromkeys(each.event for each in self.private if each.column is None),
            {each.column: each.starts for each in self.private if each.column is not None},
        )
        if saved is not None:
            history.restore(saved)
        return history

    def value(self, history: EventHistory, epoch: int) -> int | list[int]:
        """Return the randomizer's input for the last closed epoch."""
        answers = [question.answer(history, epoch) for question in self.questions]
        if self.sets:
            return [answer for answer in answers if answer]
        return answers if self.several else answers[0]

    def group(self, attributes: Mapping[str, str]) -> int:
        """Return the number of a device's public group, from 0, given its public attributes."""
        number = 0
        for each in self.public:
            value = attributes[each.name]
            values = each.values
            number = number * len(values) + values.index(value if value in values else OTHER)
        return number

    def public_values(self, job: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return the public attributes that the job uses, each as one of its values.

        Raises `ValueRejectedError` if one is missing, or is not text.
        """
        missing = [each.name for each in self.public if type(given.get(each.name)) is not str]
        if missing:
            raise ValueRejectedError(
                f"job {job} divides users by {' and '.join(missing)}, visible to everyone: pass "
                "attributes with a text for each to join"
            )
        own = {each.name: normalize("NFC", given[each.name]) for each in self.public}
        return {
            each.name: own[each.name] if own[each.name] in each.values else OTHER
            for each in self.public
        }

    def private_labels(self, job: str, given: Mapping[str, str]) -> dict[str, str]:
        """Return the labels of private attributes by column; raise `ValueRejectedError`."""
        settable = {each.name: each.column for each in self.private if each.column is not None}
        labels = {}
        for name, label in given.items():
            column = settable.get(name)
            if column is None:
                raise ValueRejectedError(
                    f"job {job} has no private attribute of this name; expected "
                    f"{' or '.join(settable) or 'none'}. Pass public attributes to join"
                )
            labels[column] = _label(label)
        return labels

    def columns(
        self,
        job: str,
        number: float | None,
        label: str | None,
        numbers: Mapping[str, float],
        labels: Mapping[str, str],
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return an event's numbers and labels by column, without those that the job does not use.

        `number` and `label` are for the only column of the job's measures. Raises
        `ValueRejectedError` if there are several, or for numbers that are not finite.
        """
        measures = self.measures.values()
        used = {each.number: None for each in measures if each.number is not None}
        texts = {each.label: None for each in measures if each.label is not None}
        every = {**texts, **{each.column: None for each in self.private if each.column}}
        given = {**_only(job, "number", number, used), **numbers}
        told = {**_only(job, "label", label, texts), **labels}
        return (
            {column: _number(given[column]) for column in used if column in given},
            {column: _label(told[column]) for column in every if column in told},
        )


def _only(job: str, key: str, value: Any, columns: Mapping[str, None]) -> dict[str, Any]:
    if value is None or not columns:
        return {}
    if len(columns) > 1:
        raise ValueRejectedError(
            f"job {job} has several columns: pass '{key}s' with {' or '.join(columns)}, instead of "
            f"'{key}'"
        )
    return dict.fromkeys(columns, value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise ValueRejectedError("an event has an invalid number; expected a finite number")
    return float(value)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _label(value: object) -> str:
    if type(value) is not str:
        raise ValueRejectedError("a label is invalid; expected a text")
    return normalize("NFC", value)


def _private(body: Mapping[str, Any], start: int) -> PrivateAttribute:
    name = _text(body["name"])
    if "first_seen" in body:
        length = body["first_seen"]
        count = _count(body["periods"])
        periods = EpochClock(start, length["months"], length["milliseconds"], count, 1, None)
        return PrivateAttribute(name, None, (), 2 + count, _texts(body["event"], least=0), periods)
    labels, spare = _texts(body["values"]), _count(body.get("spare", 0), least=0)
    starts = {_text(label): _count(start) for label, start in body.get("named", {}).items()}
    if starts.keys() != set(labels[len(labels) - len(starts) :]):
        raise ValueError("named values are not the last ones of an attribute")
    cells = 2 + len(labels) + spare
    return PrivateAttribute(name, _text(body["column"]), labels, cells, spare=spare, starts=starts)


def same_but_for_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the events of two statements are the same, but one names more spare values."""
    if {**one, "private": []} != {**other, "private": []}:
        return False
    pairs = zip(one["private"], other["private"], strict=False)
    return len(one["private"]) == len(other["private"]) and all(
        earlier == later or _names_more(earlier, later) or _names_more(later, earlier)
        for earlier, later in pairs
    )


def _names_more(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    if not (later.get("named") and "values" in earlier):
        return False
    more = later["values"][len(earlier["values"]) :]
    named = {label: later["named"].get(label) for label in more}
    spare = later.get("spare", 0) + len(more)
    extended = {
        **earlier,
        "values": [*earlier["values"], *more],
        "spare": later.get("spare", 0),
        "named": {**earlier.get("named", {}), **named},
    }
    return spare == earlier.get("spare", 0) and extended == {"spare": 0, **later}


def _count(number: Any, least: int = 1) -> int:
    if type(number) is not int or not least <= number <= _MOST_CELLS:
        raise ValueError(f"got {number!r} values of an attribute; expected at most {_MOST_CELLS}")
    return number


def _text(text: Any) -> str:
    if type(text) is not str or not text:
        raise ValueError(f"got the name {text!r}; expected a text")
    return text


def _texts(texts: Sequence[Any], least: int = 1) -> tuple[str, ...]:
    if not isinstance(texts, list) or len(texts) < least or len(set(texts)) < len(texts):
        raise ValueError("names are not a list of distinct texts")
    return tuple(map(_text, texts))
