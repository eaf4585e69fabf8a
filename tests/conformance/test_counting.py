"""Aggregators count multisets: order, grouping and encoding of messages do not matter."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.aggregators.estimate import Participation
from dpstream.pipeline.protocols.protocol import Aggregator, ResumableAggregator
from tests.conformance.cases import CASES, Case, MessageArray, every_case

DEVICES = 12
PARTS = 3

# Epoch, messages, and the count of each message.
Piece: TypeAlias = tuple[int, MessageArray, NDArray[np.uint32] | None]


@every_case
@settings(max_examples=20)
@given(data=st.data())
def test_splitting_and_merging_do_not_change_the_result(case: Case, data: st.DataObject) -> None:
    reports = sent(case)
    whole = case.aggregator()
    for epoch, words in enumerate(reports, start=1):
        whole.add(epoch, words, None)
    pieces: list[tuple[int, Piece]] = []
    for epoch, words in enumerate(reports, start=1):
        choice = st.integers(0, PARTS - 1)
        parts = np.array(data.draw(st.lists(choice, min_size=len(words), max_size=len(words))))
        shuffled = data.draw(st.permutations(range(len(words))))
        for part in set(parts.tolist()):
            chosen = words[[row for row in shuffled if parts[row] == part]]
            pieces.append((part, (epoch, *plain_or_counted(chosen, data.draw(st.booleans())))))
    aggregators = [case.aggregator() for _ in range(PARTS)]
    for part, piece in data.draw(st.permutations(pieces)):
        aggregators[part].add(*piece)
    merged = case.aggregator()
    for part in data.draw(st.permutations(range(PARTS))):
        stored = aggregators[part].to_bytes()
        merged.merge(case.restored(stored))
    assert merged.to_bytes() == whole.to_bytes()
    assert estimates(case, merged) == estimates(case, whole)


@every_case
def test_every_report_changes_the_aggregator_state(case: Case) -> None:
    """So identical states in other tests are not due to ignored reports."""
    for epoch, words in enumerate(sent(case), start=1):
        states = set[bytes]()
        for used in range(len(words) + 1):
            aggregator = case.aggregator()
            aggregator.add(epoch, words[:used], None)
            states.add(aggregator.to_bytes())
        assert len(states) == len(words) + 1


@every_case
def test_aggregator_state_round_trips_through_bytes(case: Case) -> None:
    aggregator = case.aggregator()
    for epoch, words in enumerate(sent(case), start=1):
        stored = aggregator.to_bytes()
        restored = case.restored(stored)
        assert restored.to_bytes() == stored
        assert estimates(case, restored) == estimates(case, aggregator)
        aggregator.add(epoch, words, None)
        restored.add(epoch, words, None)
        assert restored.to_bytes() == aggregator.to_bytes() != stored
        aggregator = restored


@every_case
def test_merge_changes_only_the_aggregator_that_receives_the_counts(case: Case) -> None:
    one, other = case.aggregator(), case.aggregator()
    words = sent(case)[-1]
    other.add(case.last_epoch, words, None)
    before = other.to_bytes()
    one.merge(other)
    assert one.to_bytes() == other.to_bytes() == before
    one.add(case.last_epoch, words, None)
    assert other.to_bytes() == before != one.to_bytes()


@every_case
def test_damaged_states_and_states_of_other_mechanisms_are_rejected(case: Case) -> None:
    aggregator = case.aggregator()
    for epoch, words in enumerate(sent(case), start=1):
        aggregator.add(epoch, words, None)
    stored = aggregator.to_bytes()
    for damaged in (stored[:-1], stored + b"\0", stored + stored):
        with pytest.raises(ValueError, match=r"\w"):
            case.restored(damaged)
    others = [each for each in CASES if each.protocol is case.protocol and each.law != case.law]
    for other in others[:1]:
        with pytest.raises(ValueError, match="different mechanisms"):
            aggregator.merge(other.aggregator())
    assert aggregator.to_bytes() == stored


@every_case
def test_messages_with_a_wrong_epoch_or_shape_are_rejected_without_effect(case: Case) -> None:
    aggregator, form = case.aggregator(), case.message_format
    one = next(words[:1] for words in sent(case) if len(words))
    wrong: list[tuple[int, NDArray[Any]]] = [
        (0, one),
        (1 << 20, one),
        (1, np.zeros((1, form.width + 1), form.dtype)),
        (1, np.zeros(form.width, form.dtype)),
        (1, np.zeros((1, form.width), np.float32)),
    ]
    for epoch, words in wrong:
        with pytest.raises(ValueError, match=r"\w"):
            aggregator.add(epoch, words, None)
    assert aggregator.to_bytes() == case.aggregator().to_bytes()


@every_case
def test_resumed_aggregator_gives_identical_estimates(case: Case) -> None:
    """Earlier epochs are known only by head counts at the start of later intervals."""
    for absent in range(case.last_epoch + 1):
        reports = [words[: len(words) * (epoch != absent)] for epoch, words in _numbered(case)]
        devices = np.arange(case.last_epoch + 1) + DEVICES
        heads = Participation(np.where(np.arange(len(devices)) == absent, 0, DEVICES), devices)
        whole = case.aggregator()
        for epoch, words in enumerate(reports, start=1):
            whole.add(epoch, words, None)
        for after in range(1, case.last_epoch):
            resumed, known = case.aggregator(), Participation.empty(case.last_epoch)
            if not isinstance(whole, ResumableAggregator) or not isinstance(
                resumed, ResumableAggregator
            ):
                return
            begins = {after >> order << order for order in range(after.bit_length())}
            for epoch in (*begins, *range(after + 1, case.last_epoch + 1)):
                known.set(epoch, int(heads.contributors[epoch]), int(heads.population[epoch]))
            resumed.resume(json.loads(json.dumps(whole.state_after(after, heads))), known)
            for epoch in range(after + 1, case.last_epoch + 1):
                resumed.add(epoch, reports[epoch - 1], None)
            for epoch in range(after, case.last_epoch + 1):
                estimate, again = whole.estimate(epoch, heads), resumed.estimate(epoch, known)
                assert (again and again.to_json()) == (estimate and estimate.to_json())


@every_case
def test_estimates_do_not_depend_on_earlier_queries_or_window_order(case: Case) -> None:
    """The order of windows does not matter: earlier estimates are recomputed."""
    at_once, step_by_step = case.aggregator(), case.aggregator()
    # The same participation object, since intermediate results are reused only for the same one.
    participation = Participation.constant(case.last_epoch, DEVICES)
    for epoch, words in _numbered(case):
        at_once.add(epoch, words, None)
    for epoch, words in reversed(_numbered(case)):
        estimates(case, step_by_step, participation)
        step_by_step.add(epoch, words, None)
    assert estimates(case, step_by_step, participation) == estimates(case, at_once, participation)


def test_only_listed_protocols_lack_a_resumable_aggregator() -> None:
    without = {
        case.protocol.name
        for case in CASES
        if not isinstance(case.aggregator(), ResumableAggregator) and not case.protocol.per_epoch
    }
    # shuffled_counts has resumable aggregators for Booleans, but not for items.
    several = {"hadamard_values", "range_values", "panels", "shuffled_panels", "sampled_panels"}
    assert without == {*several, "shuffled_counts"}


def _numbered(case: Case) -> list[tuple[int, MessageArray]]:
    return list(enumerate(sent(case), start=1))


def sent(case: Case) -> list[MessageArray]:
    return case.released(
        case.send(case.mixed_values(DEVICES), case.generator(2)), case.generator(3)
    )


def plain_or_counted(
    words: MessageArray, counted: bool
) -> tuple[MessageArray, NDArray[np.uint32] | None]:
    if not counted:
        return words, None
    distinct, counts = np.unique(words, axis=0, return_counts=True)
    return distinct, counts.astype(np.uint32)


def estimates(
    case: Case, aggregator: Aggregator, participation: Participation | None = None
) -> list[object]:
    participation = participation or Participation.constant(case.last_epoch, DEVICES)
    found = [aggregator.estimate(epoch, participation) for epoch in range(1, case.last_epoch + 1)]
    return [None if estimate is None else estimate.to_json() for estimate in found]
