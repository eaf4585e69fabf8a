"""Random events of users, and answers of measures by definition from all events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

from dpstream.randomizers.event_histories import DAY, EventHistory
from dpstream.randomizers.measures import MAX_NUMBER, Measure, scaled

NAMES: Final = ("open", "search", "buy", "")
LABELS: Final = ("web", "ios", "tv", "")
EPOCH: Final = 8 * DAY // 5
"""Microseconds of an epoch: epochs share days."""
MEASURES: Final = tuple(
    Measure.from_json(document)
    for document in (
        {"type": "active"},
        {"type": "active", "within": 4},
        {"type": "active", "within": 3, "event": ["search", "buy"]},
        {"type": "count", "within": 2, "at_least": 3},
        {"type": "count", "within": 3, "mean": {"low": 0, "high": 7}},
        {"type": "count", "within": 3, "buckets": [0, 1, 2, 5]},
        {"type": "days", "within": 3, "buckets": [0, 1, 2, 3, 4]},
        {
            "type": "days",
            "event": "buy",
            "within": 4,
            "buckets": {"low": 0, "high": 8, "buckets": 8},
        },
        {"type": "sum", "number": "n", "within": 2, "mean": {"low": -2.5, "high": 10.1}},
        {"type": "sum", "number": "n", "within": 4, "buckets": [0, 1.5, 20]},
        {"type": "sum", "number": "n", "buckets": {"low": 0, "high": 16, "buckets": 16}},
        {"type": "max", "number": "n", "within": 3, "buckets": [-3, 2.25, 5]},
        {"type": "max", "number": "m", "within": 2, "event": "buy", "at_least": 0},
        {"type": "last", "number": "n", "within": 3, "mean": {"low": 0, "high": 5}, "scale": 1},
        {"type": "last", "label": "l", "within": 3, "values": ["web", "ios"]},
        {"type": "most", "label": "l", "within": 4, "values": ["ios", "web"]},
        {"type": "lifecycle", "within": 2},
        {"type": "lifecycle", "within": 1, "event": "search"},
        {"type": "steps", "within": 1, "steps": ["open", "search", "buy"]},
        {"type": "steps", "within": 3, "steps": ["search", "buy", "open"]},
    )
)


@dataclass(frozen=True)
class RandomEvent:
    moment: int
    event: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        return self.moment // EPOCH + 1


def random_events(
    random: Random, first: int = -4, last: int = 10, most: int = 30
) -> list[RandomEvent]:
    """Draw events of one user in order of their rows, of which some have equal times."""
    span = [
        (epoch - 1) * EPOCH + part * EPOCH // 6
        for epoch in range(first, last + 1)
        for part in range(6)
    ]
    return [
        RandomEvent(
            random.choice(span),
            random.choice(NAMES),
            {
                name: random.choice((-3, 0.0005, 1.5, 4, 9))
                for name in "nm"
                if random.random() < 0.7
            },
            {"l": random.choice(LABELS)},
        )
        for _ in range(random.randrange(most))
    ]


def brute_answer(measure: Measure, events: Iterable[RandomEvent], epoch: int) -> int:
    """Return the answer at the end of an epoch from all events in order of their rows."""
    counted = measure.steps or measure.event
    past = [e for e in events if e.epoch <= epoch and (not counted or e.event in counted)]
    if measure.number is not None:
        past = [e for e in past if measure.number in e.numbers]
    if measure.label is not None:
        past = [e for e in past if e.labels[measure.label]]
    past.sort(key=lambda e: e.moment)
    window = [e for e in past if epoch - measure.within < e.epoch]
    if measure.type == "lifecycle":
        return _lifecycle(sorted({e.epoch for e in past}), epoch, measure.within)
    numbers = [scaled(e.numbers[measure.number], measure.scale) for e in window if measure.number]
    labels = [e.labels[measure.label] for e in window if measure.label]
    labels = [label if label in measure.values else "other" for label in labels]
    value: int | None = None
    match measure.type:
        case "active":
            value = int(bool(window))
        case "count":
            value = len(window)
        case "days":
            value = len({e.moment // DAY for e in window})
        case "sum":
            value = max(-MAX_NUMBER, min(MAX_NUMBER, sum(numbers)))
        case "max":
            value = max(numbers, default=None)
        case "last" if measure.number:
            value = numbers[-1] if numbers else None
        case "last":
            value = measure.labels.index(labels[-1]) + 1 if labels else 0
        case "most":
            order = sorted(
                measure.labels, key=lambda name: (-labels.count(name), measure.labels.index(name))
            )
            value = measure.labels.index(order[0]) + 1 if labels else 0
        case "steps":
            value = 0
            for e in sorted(window, key=lambda e: (e.moment, measure.steps.index(e.event))):
                value += e.event == [*measure.steps, None][value]
    return measure.answer_of(value)


def _lifecycle(epochs: list[int], epoch: int, away: int) -> int:
    if not epochs:
        return 0
    if epoch - epochs[-1] >= away:
        return 4
    if epoch - epochs[0] < away:
        return 1
    returns = [later for earlier, later in pairwise(epochs) if later - earlier > away]
    return 3 if returns and epoch - returns[-1] < away else 2


def arrivals(
    random: Random, events: list[RandomEvent], last: int
) -> Iterator[tuple[int, list[RandomEvent]]]:
    """Yield each epoch from 0, and the events that arrive before it is closed; some are late."""
    when = [max(0, event.epoch + random.choice((-1, 0, 0, 0, 0, 1, 3, 6))) for event in events]
    for epoch in range(last + 1):
        yield epoch, [event for event, at in zip(events, when, strict=True) if at == epoch]


def note(history: EventHistory, event: RandomEvent) -> None:
    history.record(event.epoch, event.moment, event.event, event.numbers, event.labels)


def actions(random: Random, measures: Iterable[Measure], last: int) -> list[dict[str, Any]]:
    """Return what a device records until each epoch is closed, and its answers then."""
    measures = list(measures)
    history = EventHistory(measures)
    found = []
    for epoch, batch in arrivals(random, random_events(random, last=last), last):
        for event in batch:
            note(history, event)
        history.close(epoch)
        recorded = [[e.epoch, e.moment, e.event, e.numbers, e.labels] for e in batch]
        answers = [history.answer(measure, epoch) for measure in measures]
        found.append({"record": recorded, "close": epoch, "answers": answers})
    return found
