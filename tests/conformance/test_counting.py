"""An aggregator counts a multiset: no order, no grouping and no encoding makes a difference."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from pipeline.protocols.protocol import Aggregator
from tests.conformance.cases import Case, WordArray, every_case

DEVICES = 12
PARTS = 3

# An epoch, words and how often each.
Piece: TypeAlias = tuple[int, WordArray, NDArray[np.uint32] | None]


@every_case
@settings(max_examples=20)
@given(data=st.data())
def test_however_reports_are_split_and_merged_the_result_is_the_same(
    case: Case, data: st.DataObject
) -> None:
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
def test_every_report_counts(case: Case) -> None:
    """So equal states above are not equal because reports were dropped."""
    for epoch, words in enumerate(sent(case), start=1):
        states = set[bytes]()
        for used in range(len(words) + 1):
            aggregator = case.aggregator()
            aggregator.add(epoch, words[:used], None)
            states.add(aggregator.to_bytes())
        assert len(states) == len(words) + 1


@every_case
def test_a_state_survives_its_bytes(case: Case) -> None:
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
def test_merging_changes_nothing_but_the_one_merged_into(case: Case) -> None:
    one, other = case.aggregator(), case.aggregator()
    words = sent(case)[-1]
    other.add(case.last_epoch, words, None)
    before = other.to_bytes()
    one.merge(other)
    assert one.to_bytes() == other.to_bytes() == before
    one.add(case.last_epoch, words, None)
    assert other.to_bytes() == before != one.to_bytes()


def sent(case: Case) -> list[WordArray]:
    return case.released(
        case.send(case.mixed_values(DEVICES), case.generator(2)), case.generator(3)
    )


def plain_or_counted(
    words: WordArray, counted: bool
) -> tuple[WordArray, NDArray[np.uint32] | None]:
    if not counted:
        return words, None
    distinct, counts = np.unique(words, axis=0, return_counts=True)
    return distinct, counts.astype(np.uint32)


def estimates(case: Case, aggregator: Aggregator) -> list[object]:
    attendance = Attendance.constant(case.last_epoch, DEVICES)
    found = [aggregator.estimate(epoch, attendance) for epoch in range(1, case.last_epoch + 1)]
    return [None if estimate is None else estimate.to_json() for estimate in found]
