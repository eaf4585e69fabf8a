"""Test estimates from noisy sums over time: unbiased, with the stated error; strict parsing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, Estimate, Participation
from dpstream.aggregators.shuffled_value_stream import (
    ShuffledValueStreamAggregator,
)
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import (
    MOST_SUM,
    SUM_ZERO,
    ZERO,
    ShuffledValueStream,
)
from dpstream.randomizers.shuffled_counts.shuffled_value_stream.calibration import calibrate

EPOCHS, DEVICES, RUNS = 24, 300, 300
LAW = calibrate(ShuffledCountsParameters(4, 1e-3, 2, dummies="shuffle"), EPOCHS, 100)


def word(steps: int) -> NDArray[np.uint64]:
    return np.array([[SUM_ZERO + steps]], np.uint64)


def streams() -> NDArray[np.int8]:
    rng = np.random.default_rng(5)
    first, second = np.sort(rng.integers(0, EPOCHS + 8, (2, DEVICES)), axis=0)
    epochs = np.arange(EPOCHS)[:, None]
    return np.asarray((epochs >= first) & (epochs < second), np.int8)


def run(
    values: NDArray[np.int8], present: NDArray[np.bool_], seed: int, suppressed: int = -1
) -> tuple[list[Estimate], NDArray[np.float64]]:
    devices, rng = ShuffledValueStream(LAW), seeded_generator(9, seed)
    devices.enroll(DEVICES, rng)
    aggregator, participation = ShuffledValueStreamAggregator(LAW), Participation.empty(EPOCHS)
    found = []
    for epoch, (now, here) in enumerate(zip(values, present, strict=True), start=1):
        words = devices.report(epoch, now, here, rng)
        if epoch - 1 != suppressed:
            steps = int((words.astype(np.int64) - ZERO).sum())
            # As fast as the table, and with the same variance.
            noise = round(float(rng.normal(0, LAW.deviation)))
            aggregator.add(epoch, word(steps + noise), None)
        participation.set(epoch, int(here.sum()), DEVICES)
        estimate = aggregator.estimate(epoch, participation)
        assert estimate is not None
        found.append(estimate)
    return found, values.sum(axis=1).astype(np.float64)


def test_suppressed_epoch_repeats_the_estimate_with_a_gap_flag() -> None:
    values, everybody = streams(), np.ones((EPOCHS, DEVICES), np.bool_)
    found, _ = run(values, everybody, 1, suppressed=11)
    assert found[11].value == found[10].value
    assert found[11].flags == (GAP,)
    assert found[11].reports == 0
    assert not found[12].flags


def test_invalid_sums_are_rejected() -> None:
    aggregator = ShuffledValueStreamAggregator(LAW)
    for wrong in (MOST_SUM + 1, -MOST_SUM - 1, -SUM_ZERO, SUM_ZERO):
        with pytest.raises(ValueError, match=f"sum at epoch 1 is {SUM_ZERO + wrong}"):
            aggregator.add(1, word(wrong), None)
    with pytest.raises(ValueError, match="epoch"):
        aggregator.add(EPOCHS + 1, word(0), None)
    with pytest.raises(ValueError, match="uint64"):
        aggregator.add(1, word(0).astype(np.uint32), None)
    with pytest.raises(ValueError, match="33 sums at epoch 1; expected at most 32"):
        aggregator.add(1, word(0), np.array([33], np.uint32))
    assert aggregator.to_bytes() == b""
