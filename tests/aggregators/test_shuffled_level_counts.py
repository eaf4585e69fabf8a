"""From words to counts of numbers over time: unbiased, and as far off as is said."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.estimate import GAP
from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.shuffled_level_counts import (
    ShuffledLevelCountsAggregator,
    predicted_deviations,
)
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.item_domains import Numbers
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration import calibrate

EPOCHS, BUCKETS, USERS, RUNS = 8, 32, 20_000, 150
RANGES = [(0, 1), (17, 18), (0, 16), (5, 9), (3, 30), (12, 32), (0, 32)]
BOOSTED = {"changes": 3, "boost": 1}
BOTH = pytest.mark.parametrize("boosted", [False, True])
BOTH_IN_TIME = pytest.mark.parametrize(
    "boosted", [False, pytest.param(True, marks=pytest.mark.verify)]
)


@cache
def law(boosted: bool) -> ShuffledLevelCountsLaw:
    more: Any = BOOSTED if boosted else {}
    asked = ShuffledCountsParameters(1.0, 1e-6, domain=Numbers(0, 80, BUCKETS), **more)
    return calibrate(asked, EPOCHS, minimum=USERS // 2)


@cache
def values() -> NDArray[np.int64]:
    """Shape (epochs, users), 0 for none; two changes at most, beside the first value."""
    rng = np.random.default_rng(1)
    drawn = 1 + np.minimum(rng.gamma(3, 4, (3, USERS)).astype(np.int64), BUCKETS - 1)
    drawn[0] *= rng.random(USERS) < 0.8
    held = np.repeat(drawn[:1], EPOCHS, axis=0)
    for each in drawn[1:]:
        changed = rng.integers(1, 2 * EPOCHS, USERS)
        for epoch in range(EPOCHS):
            held[epoch] = np.where(epoch >= changed, each, held[epoch])
    return held


def send(
    asked: ShuffledLevelCountsLaw,
    held: NDArray[np.int64],
    rng: np.random.Generator,
    silent: float = 0.0,
) -> tuple[ShuffledLevelCountsAggregator, Attendance]:
    users = held.shape[1]
    devices, aggregator = ShuffledItemCounts(asked), ShuffledLevelCountsAggregator(asked)
    attendance = Attendance.empty(len(held))
    devices.enrol(users, rng)
    for epoch, now in enumerate(held, 1):
        present: NDArray[np.bool_] = np.array(rng.random(users) >= silent)
        reports = devices.report(epoch, now, present, rng)
        assert isinstance(reports, CountedWords)
        aggregator.add(epoch, reports.values, reports.counts)
        attendance.set(epoch, int(present.sum()), users)
    return aggregator, attendance


def known(estimate: LevelEstimates | None) -> LevelEstimates:
    assert estimate is not None
    return estimate


@pytest.mark.slow
@BOTH_IN_TIME
def test_ranges_are_unbiased_and_as_far_off_as_said_and_planned(boosted: bool) -> None:
    asked, held = law(boosted), values()
    truth = np.stack([np.bincount(now, minlength=BUCKETS + 1)[1:] for now in held])
    errors = np.empty((RUNS, EPOCHS, len(RANGES)))
    said = np.empty((EPOCHS, len(RANGES)))
    covered = ranks = 0.0
    shares = (0.1, 0.25, 0.5, 0.75, 0.9)
    for run in range(RUNS):
        aggregator, attendance = send(asked, held, seeded_generator(run))
        for epoch in range(EPOCHS):
            found = known(aggregator.estimate(epoch + 1, attendance))
            below = np.insert(np.cumsum(truth[epoch]), 0, 0) / truth[epoch].sum()
            for index, (start, end) in enumerate(RANGES):
                answer, expected = found.range(start, end), truth[epoch, start:end].sum()
                assert answer.value is not None
                assert answer.low is not None
                assert answer.high is not None
                errors[run, epoch, index] = answer.value - expected
                said[epoch, index] = answer.standard_deviation or 0.0
                covered += answer.low <= expected <= answer.high
            for share in shares:
                found_share = np.interp(found.quantile(share).value, range(BUCKETS + 1), below)
                ranks += abs(found_share - share)
    planned = np.stack([predicted_deviations(asked, EPOCHS, USERS, *each) for each in RANGES], 1)
    np.testing.assert_allclose(said, planned)
    means = errors.mean(axis=0) / said * math.sqrt(RUNS)
    assert np.abs(means).max() < 7
    assert np.abs(means + 0.7 * math.sqrt(RUNS)).min() > 1
    # Over all epochs and ranges; a boost makes epochs alike, and ranges overlap.
    measured = math.sqrt(np.square(errors / said).mean())
    assert abs(measured - 1) < 0.05
    assert 0.93 < covered / errors.size < 0.97
    assert ranks / (RUNS * EPOCHS * len(shares)) < 0.003


@BOTH
def test_a_withheld_epoch_is_a_gap(boosted: bool) -> None:
    aggregator, attendance = send(law(boosted), values(), seeded_generator(1))
    for epoch in (1, 4):
        attendance.set(epoch, USERS // 2 - 1, USERS)
    found = [aggregator.estimate(epoch, attendance) for epoch in range(1, EPOCHS + 1)]
    assert found[0] is None
    later = [known(each) for each in found[1:]]
    assert [each.flags for each in later[:4]] == [(), (), (GAP,), ()]
    assert later[1].range(3, 9).value == later[2].range(3, 9).value
