"""Test counts of numbers over time from messages: unbiased, with the stated error."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Participation
from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.shuffled_level_counts import (
    ShuffledLevelCountsAggregator,
)
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.item_domains import Numbers
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCounts
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw
from dpstream.randomizers.shuffled_counts.shuffled_level_counts.calibration import calibrate

EPOCHS, BUCKETS, USERS, RUNS = 8, 32, 20_000, 150
BOOSTED = {"max_changes": 3, "boost": 1}
BOTH = pytest.mark.parametrize("boosted", [False, True])


@cache
def law(boosted: bool) -> ShuffledLevelCountsLaw:
    more: Any = BOOSTED if boosted else {}
    requested = ShuffledCountsParameters(1.0, 1e-6, domain=Numbers(0, 80, BUCKETS), **more)
    return calibrate(requested, EPOCHS, minimum=USERS // 2)


@cache
def values() -> NDArray[np.int64]:
    """Draw values, shape (epochs, users), 0 for none: at most two changes after the first value."""
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
    requested: ShuffledLevelCountsLaw,
    held: NDArray[np.int64],
    rng: np.random.Generator,
    absent: float = 0.0,
) -> tuple[ShuffledLevelCountsAggregator, Participation]:
    users = held.shape[1]
    devices, aggregator = ShuffledItemCounts(requested), ShuffledLevelCountsAggregator(requested)
    participation = Participation.empty(len(held))
    devices.enroll(users, rng)
    for epoch, now in enumerate(held, 1):
        present: NDArray[np.bool_] = np.array(rng.random(users) >= absent)
        reports = devices.report(epoch, now, present, rng)
        assert isinstance(reports, CountedMessages)
        aggregator.add(epoch, reports.values, reports.counts)
        participation.set(epoch, int(present.sum()), users)
    return aggregator, participation


def known(estimate: LevelEstimates | None) -> LevelEstimates:
    assert estimate is not None
    return estimate


@BOTH
def test_suppressed_epoch_repeats_the_estimate_with_a_gap_flag(boosted: bool) -> None:
    aggregator, participation = send(law(boosted), values(), seeded_generator(1))
    for epoch in (1, 4):
        participation.set(epoch, USERS // 2 - 1, USERS)
    found = [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]
    assert found[0] is None
    later = [known(each) for each in found[1:]]
    assert [each.flags for each in later[:4]] == [(), (), (GAP,), ()]
    assert later[1].range(3, 9).value == later[2].range(3, 9).value
