"""Test item counts over time from messages: unbiased, with the stated error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Participation
from dpstream.aggregators.shuffled_item_counts import (
    ShuffledItemCountsAggregator,
)
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import (
    ShuffledItemCounts,
    ShuffledItemCountsLaw,
)

EPOCHS = 6
USERS = 400
MINIMUM = 200


def law(buckets: int, boost: int, size: int = 20) -> ShuffledItemCountsLaw:
    changes = 3 if boost else 0
    held, left = (CellNoiseLaw("poisson", mean, MINIMUM) for mean in (60.0, 30.0))
    return ShuffledItemCountsLaw(
        EPOCHS, size, 1.0, 1e-6, changes, boost, buckets, held, left if boost else None
    )


def values() -> NDArray[np.int64]:
    """Draw values, shape (epochs, users): a third never change, others get their items later."""
    rng = np.random.default_rng(1)
    held = np.zeros((EPOCHS, USERS), np.int64)
    held[:, : USERS // 3] = 1
    changes = rng.integers(0, EPOCHS, USERS)
    for epoch in range(EPOCHS):
        came = (changes <= epoch) & (np.arange(USERS) >= USERS // 3)
        held[epoch, came] = 2 + np.arange(USERS)[came] % 4
    held[4:, USERS // 2 :] = 7
    return held


def send(
    requested: ShuffledItemCountsLaw,
    held: NDArray[np.int64],
    rng: np.random.Generator,
    absent: float = 0.0,
) -> tuple[ShuffledItemCountsAggregator, Participation]:
    devices, aggregator = ShuffledItemCounts(requested), ShuffledItemCountsAggregator(requested)
    participation = Participation.empty(EPOCHS)
    devices.enroll(USERS, rng)
    for epoch, now in enumerate(held, 1):
        present = rng.random(USERS) >= absent
        reports = devices.report(epoch, now, present, rng)
        if isinstance(reports, CountedMessages):
            aggregator.add(epoch, reports.values, reports.counts)
        else:
            aggregator.add(epoch, reports, None)
        participation.set(epoch, int(present.sum()), USERS)
    return aggregator, participation


def test_suppressed_epoch_repeats_the_estimate_with_a_gap_flag() -> None:
    aggregator, participation = send(law(23, 2), values(), seeded_generator(1))
    participation.set(1, MINIMUM - 1, USERS)
    participation.set(4, MINIMUM - 1, USERS)
    found = [aggregator.estimate(epoch, participation) for epoch in range(1, EPOCHS + 1)]
    assert found[0] is None
    assert [each.flags for each in found[1:] if each is not None] == [(), (), (GAP,), (), ()]
    assert found[2] is not None
    assert found[3] is not None
    assert (found[2].values == found[3].values).all()
    assert found[2].standard_error == found[3].standard_error
