"""Histories of devices: the same answers as all events together, from little state."""

from __future__ import annotations

import json
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.randomizers.event_histories import EventHistory
from dpstream.randomizers.measures import MAX_NUMBER, MAX_STEPS, MeanRange, Measure, MeasureType
from tests.randomizers.javascript.measure_vectors import MEASURE_FOLDER, measure_vectors
from tests.support.random_events import (
    MEASURES,
    RandomEvent,
    arrivals,
    brute_answer,
    note,
    random_events,
)

LAST = 10


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**40))
def test_history_answers_as_all_recorded_events_do(seed: int) -> None:
    random = Random(seed)
    events = random_events(random)
    history, known = EventHistory(MEASURES, {"l": ["tv"]}, [(), ("buy",)]), []
    for epoch, batch in arrivals(random, events, LAST):
        for event in batch:
            note(history, event)
        known += batch
        history.close(epoch)
        if random.random() < 0.5:
            saved = json.loads(json.dumps(history.to_json()))
            history = EventHistory(MEASURES, {"l": ["tv"]}, [(), ("buy",)])
            history.restore(saved)
        for measure in MEASURES:
            # A row too late for every window counts for the first epoch and the gap before only.
            assert history.answer(measure, epoch) == brute_answer(measure, known, epoch), measure
        past = [event for event in known if event.epoch <= epoch]
        named = min(((e.epoch, e.moment) for e in past if e.event == "buy"), default=None)
        assert history.first(("buy",), epoch) == named
        labels = [e.labels["l"] for e in sorted(past, key=lambda e: e.moment) if e.labels["l"]]
        assert history.latest("l", epoch) == ((2 - (labels[-1] == "tv")) if labels else 0)


@pytest.mark.parametrize("kind", get_args(MeasureType))
def test_histories_reproduce_test_vectors(kind: str) -> None:
    stored = json.loads((MEASURE_FOLDER / f"{kind}.json").read_text())
    assert stored == json.loads(json.dumps(measure_vectors(kind)))
    answers = {a for run in stored["histories"] for step in run for a in step["answers"]}
    assert len(answers) > 1


def test_epochs_before_the_first_are_history_closed_together() -> None:
    steps, life = Measure("steps", within=4, steps=("a", "b")), Measure("lifecycle", within=2)
    one, each = EventHistory([steps, life]), EventHistory([steps, life])
    for epoch, name in ((-9, "a"), (-1, "a"), (0, "b")):
        for history in (one, each):
            history.record(epoch, epoch * 10**12, name)
    for epoch in range(-9, 1):
        each.close(epoch)
    one.close(0)
    assert one.to_json() == each.to_json()
    assert [one.answer(measure, 0) for measure in (steps, life)] == [2, 3]


def test_late_event_never_makes_an_active_user_dormant() -> None:
    active, life = Measure("active", within=3), Measure("lifecycle", within=3)
    history = EventHistory([active, life])
    history.record(1, 1)
    for epoch in range(1, 7):
        history.close(epoch)
    assert history.answer(life, 6) == 4
    history.record(5, 5)
    history.close(7)
    assert (history.answer(active, 7), history.answer(life, 7)) == (1, 3)


def test_only_the_last_closed_epoch_has_an_answer() -> None:
    active = Measure("active")
    history = EventHistory([active])
    for epoch in (1, 2):
        history.close(epoch)
    with pytest.raises(
        ValueError, match="epoch 1 has no answer: expected the last closed epoch, 2"
    ):
        history.answer(active, 1)
    with pytest.raises(ValueError, match="already closed"):
        history.close(1)
    with pytest.raises(ValueError, match="finite"):
        history.record(3, 3, numbers={"n": float("inf")})


def test_sums_are_exact_in_any_order_and_clamped_when_read() -> None:
    total = Measure("sum", number="n", scale=1, mean=MeanRange(0, 4))
    for numbers in ([2.0**60, 2.0**60, 3, -(2.0**60), -(2.0**60)], [3], [-(2.0**70), 3, 2.0**70]):
        for order in (numbers, numbers[::-1], sorted(numbers)):
            history = EventHistory([total])
            for number in order:
                history.record(1, 1, numbers={"n": number})
            history.close(1)
            assert history.answer(total, 1) == 3 << 30
    assert MAX_NUMBER == 2**53


def test_state_is_bounded() -> None:
    history = EventHistory(MEASURES)
    events = [
        RandomEvent(index * 10**9, ("open", "search", "buy")[index % 3], {"n": 1}, {"l": "web"})
        for index in range(5000)
    ]
    for event in events:
        note(history, event)
    history.close(events[-1].epoch)
    saved = history.to_json()
    assert len(json.dumps(saved)) < 12_000
    steps = [cell for track in saved["measures"][-2:] for _, cell in track["cells"]]
    assert max(map(len, steps)) == MAX_STEPS
