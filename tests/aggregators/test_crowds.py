"""Test counts by crowd: unbiased estimates from the messages left after deletion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.crowd_estimates import CrowdEstimates
from dpstream.aggregators.crowd_items import CrowdsAggregator, half_width_of_noise
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.single_message import SingleMessageAggregator
from dpstream.randomizers.crowds import CrowdDevices, CrowdsLaw
from dpstream.randomizers.crowds.calibration import calibrate
from dpstream.randomizers.noise_tables import TABLE_BITS, NoiseTable, discrete_laplace_table
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.single_message import (
    SingleMessage,
    SingleMessageLaw,
    SingleMessageParameters,
)
from dpstream.randomizers.single_message.calibration import calibrate as calibrate_messages
from dpstream.topics.messages import Messages

ITEMS = ("a", "b", "c")
SIZES = (900, 300, 60)
MINIMUM = 100


def law_of(epsilon: float = 1.0) -> CrowdsLaw:
    parameters = SingleMessageParameters(epsilon, 1e-3, ITEMS)
    return CrowdsLaw(calibrate_messages(parameters, 1, MINIMUM, 2), 3, calibrate(0.5, 1e-3, 1))


LAW = law_of(4.0)


def empty() -> SingleMessageAggregator:
    assert isinstance(LAW.contents, SingleMessageLaw)
    return SingleMessageAggregator(LAW.contents)


def read(data: bytes) -> SingleMessageAggregator:
    assert isinstance(LAW.contents, SingleMessageLaw)
    return SingleMessageAggregator.from_bytes(LAW.contents, data)


def aggregator() -> CrowdsAggregator[SingleMessageAggregator]:
    return CrowdsAggregator(LAW, empty)


def values() -> NDArray[np.int64]:
    rows = [[0, 0]] * 10
    for place, size in enumerate(SIZES):
        first = 1 + place * 4
        rows += [[first, first + (1 if u % 2 else 2 if u % 3 else 0)] for u in range(size)]
    return np.array(rows, np.int64)


def ground_truth() -> dict[int, int]:
    found = values()
    return {number: int((found == number).any(axis=1).sum()) for number in range(1, 13)}


def released(run: int) -> CrowdsAggregator[SingleMessageAggregator]:
    # The shuffler has tests of its own: this reproduces its effect.
    assert isinstance(LAW.contents, SingleMessageLaw)
    rng = seeded_generator(run)
    held = values()
    devices = CrowdDevices(LAW, SingleMessage(LAW.contents))
    devices.enroll(len(held), rng)
    words = devices.report(1, held, None, rng)
    crowds, kept = LAW.crowds_of(words), []
    table = discrete_laplace_table(LAW.counts.ratio)
    for place, noise in enumerate(table.draw(len(SIZES), rng).tolist()):
        mine = rng.permutation(words[crowds == place + 1])
        left = max(0, min(len(mine), len(mine) + noise - LAW.counts.shift))
        if left >= MINIMUM:
            kept.append(mine[:left])
    counted = Messages.canonical(np.concatenate(kept))
    found = aggregator()
    counts = None if counted.counts is None else counted.counts.astype(np.uint32)
    found.add(1, counted.values, counts)
    return found


def estimate_of(found: CrowdsAggregator[SingleMessageAggregator]) -> CrowdEstimates:
    people = sum(SIZES) + 10
    estimate = found.estimate(1, Participation.constant(1, people))
    assert estimate is not None
    return estimate


def test_estimates_are_unbiased_with_correct_standard_errors() -> None:
    runs, expected = 400, ground_truth()
    found = [dict(estimate_of(released(run)).of_items()) for run in range(runs)]
    assert found[0].keys() == set(range(1, 9)), "the third crowd is suppressed"
    for number in found[0]:
        estimates = [each[number] for each in found]
        errors = np.array([(each.value or 0) - expected[number] for each in estimates])
        stated = float(np.mean([each.standard_error or 0.0 for each in estimates]))
        assert abs(errors.mean()) < 6 * stated / math.sqrt(runs)
        assert errors.std() < 1.1 * stated
        # The error is that of the most frequent item, and of the crowd itself.
        assert errors.std() > 0.7 * stated or number not in (1, 2, 5, 6)
        low = np.array([each.ci95_low for each in estimates], np.float64)
        high = np.array([each.ci95_high for each in estimates], np.float64)
        covered = np.mean((low <= expected[number]) & (expected[number] <= high))
        assert covered > 0.95 - 6 * math.sqrt(0.05 * 0.95 / runs)


def test_crowd_sizes_are_unbiased_only_after_adding_the_deletion_shift() -> None:
    crowds = [estimate_of(released(run)).crowds[0] for run in range(20)]
    found = [each for each in crowds if each is not None]
    tolerance = 6 * math.sqrt(LAW.counts.variance / len(found))
    assert abs(np.mean([each.size.value or 0 for each in found]) - SIZES[0]) < tolerance
    assert abs(np.mean([each.left for each in found]) - SIZES[0]) > tolerance


def test_crowd_size_interval_covers_noise_with_95_percent_probability() -> None:
    for epsilon in (0.1, 0.5, 1.0, 3.0, 8.0):
        counts = calibrate(epsilon, 1e-6, 1)
        table = discrete_laplace_table(counts.ratio)
        width = half_width_of_noise(counts)

        def outside(width: int, table: NoiseTable = table) -> float:
            bounds, first = table.bounds, table.first
            below = bounds[-width - 1 - first] if -width - 1 >= first else 0
            return float((below + 2**TABLE_BITS - bounds[width - first]) / 2**TABLE_BITS)

        assert outside(width) <= 0.05
        assert width == 0 or outside(width - 1) > 0.05


def test_merging_sums_the_counts_and_the_merged_state_round_trips() -> None:
    one, other = released(1), released(2)
    both = aggregator()
    both.merge(one)
    both.merge(other)
    again = CrowdsAggregator.from_bytes(LAW, empty, read, both.to_bytes())
    assert again.to_bytes() == both.to_bytes()
    reverse = released(2)
    reverse.merge(released(1))
    assert reverse.to_bytes() == both.to_bytes()
    assert estimate_of(again).reports == estimate_of(one).reports + estimate_of(other).reports
    assert CrowdsAggregator.from_bytes(LAW, empty, read, b"").to_bytes() == b""


def test_invalid_states_are_rejected() -> None:
    state = released(1).to_bytes()
    for wrong in (state[:5], state[:-1], state + state, b"\x09" + state[1:], state[:12]):
        with pytest.raises(ValueError, match=r"crowd|counts|bytes"):
            CrowdsAggregator.from_bytes(LAW, empty, read, wrong)
    others = law_of(1.0)
    assert isinstance(others.contents, SingleMessageLaw)
    with pytest.raises(ValueError, match="different mechanisms"):
        aggregator().merge(CrowdsAggregator(others, empty))


def test_invalid_messages_are_rejected() -> None:
    found = aggregator()
    for words, problem in (
        (np.array([[4, 0]], np.uint8), "crowd 4"),
        (np.array([[1, 4]], np.uint8), "is 4; expected"),
        (np.array([[1]], np.uint8), "messages of epoch 1"),
    ):
        with pytest.raises(ValueError, match=problem):
            found.check_messages(1, words)
    found.check_messages(1, np.array([[0, 3]], np.uint8))
    with pytest.raises(ValueError, match="message without a crowd at epoch"):
        found.add(1, np.array([[0, 3]], np.uint8), None)
    assert found.to_bytes() == b""


def test_crowd_estimates_round_trip_through_json_and_can_be_added() -> None:
    one, other = estimate_of(released(1)), estimate_of(released(2))
    body = one.to_json()
    assert CrowdEstimates.from_json(body).to_json() == body
    assert body["crowds"][2] is None
    total = one.plus(other)
    for number, estimate in total.of_items():
        parts = [dict(each.of_items())[number].value or 0 for each in (one, other)]
        assert estimate.value == pytest.approx(sum(parts))
    assert total.suppressed == (9,)
    np.testing.assert_array_equal(one.numbers, np.arange(1, 9))
    np.testing.assert_array_equal(one.intervals[0], [each.value for _, each in one.of_items()])
    assert np.isnan(one.intervals_of(np.array([9, 1]))[0]).tolist() == [True, False]
    assert one.may_be_of(12)
    assert not one.may_be_of(7)
