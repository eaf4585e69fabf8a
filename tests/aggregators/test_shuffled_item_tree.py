"""From words to counts of items over time, by intervals: unbiased, and as far off as is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregators.attendance import Attendance
from aggregators.estimate import GAP
from aggregators.shuffled_item_tree import (
    ShuffledItemTreeAggregator,
    predicted_deviations,
    predicted_smoothed_deviations,
)
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.counted_words import CountedWords
from randomizers.randomness import seeded_generator
from randomizers.shuffled_item_tree import ShuffledItemTree, ShuffledItemTreeLaw

EPOCHS = 6
USERS = 400
RUNS = 200
MINIMUM = 200


def law(buckets: int, changes: int) -> ShuffledItemTreeLaw:
    noise = CellNoiseLaw("poisson", 80.0, MINIMUM)
    return ShuffledItemTreeLaw(EPOCHS, 20, 1.0, 1e-6, changes, 3, buckets, noise)


def values(changes: int) -> NDArray[np.int64]:
    """Shape (epochs, users): users come to an item once, and with more changes to another one."""
    rng = np.random.default_rng(1)
    held = np.zeros((EPOCHS, USERS), np.int64)
    first = rng.integers(0, EPOCHS, USERS)
    for epoch in range(EPOCHS):
        came = first <= epoch
        held[epoch, came] = 1 + np.arange(USERS)[came] % 5
    if changes > 1:
        held[4:, USERS // 2 :] = 7
    return held


def send(
    asked: ShuffledItemTreeLaw, held: NDArray[np.int64], rng: np.random.Generator
) -> ShuffledItemTreeAggregator:
    devices, aggregator = ShuffledItemTree(asked), ShuffledItemTreeAggregator(asked)
    devices.enrol(USERS, rng)
    for epoch, now in enumerate(held, 1):
        reports = devices.report(epoch, now, None, rng)
        if isinstance(reports, CountedWords):
            aggregator.add(epoch, reports.values, reports.counts)
        else:
            aggregator.add(epoch, reports, None)
    return aggregator


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buckets", "changes"),
    [
        (23, 1),
        pytest.param(23, 2, marks=pytest.mark.verify),
        pytest.param(5, 2, marks=pytest.mark.verify),
    ],
)
def test_estimates_are_unbiased_and_as_far_off_as_said(buckets: int, changes: int) -> None:
    asked, held = law(buckets, changes), values(changes)
    truth = np.stack([np.bincount(now, minlength=21)[1:] for now in held])
    attendance = Attendance.constant(EPOCHS, USERS)
    online, looked_back = np.empty((2, RUNS, EPOCHS, 20))
    said = np.empty((2, RUNS, EPOCHS))
    for run in range(RUNS):
        aggregator = send(asked, held, seeded_generator(run))
        for epoch in range(1, EPOCHS + 1):
            estimate = aggregator.estimate(epoch, attendance)
            online[run, epoch - 1] = estimate.values - truth[epoch - 1]
            said[0, run, epoch - 1] = estimate.standard_deviation
        found = aggregator.smoothed(EPOCHS, attendance)
        looked_back[run] = found.values - truth
        said[1, run] = found.standard_deviations
    for errors, deviations in zip((online, looked_back), said.mean(axis=1), strict=True):
        means = errors.mean(axis=0) / deviations[:, None] * math.sqrt(RUNS)
        assert np.abs(means).max() < 7
        assert np.abs(means + 0.8 * math.sqrt(RUNS)).min() > 3
        spread = np.square(errors).mean(axis=(0, 2)) / np.square(deviations)
        assert (np.abs(spread - 1) < 0.15).all()
    # The plan takes everybody to come to an item at once, and to change as often as may be.
    planned = predicted_deviations(asked, EPOCHS, USERS)
    assert said[0].mean(axis=0) == pytest.approx(planned, rel=0.01 if buckets == 23 else 0.25)
    smoothed = predicted_smoothed_deviations(asked, EPOCHS, USERS)
    assert said[1].mean(axis=0) == pytest.approx(smoothed, rel=0.01 if buckets == 23 else 0.25)


def test_a_withheld_epoch_is_a_gap_until_a_longer_interval_covers_it() -> None:
    aggregator = send(law(23, 2), values(2), seeded_generator(1))
    attendance = Attendance.constant(EPOCHS, USERS)
    attendance.set(1, MINIMUM - 1, USERS)
    flags = [aggregator.estimate(epoch, attendance).flags for epoch in range(1, EPOCHS + 1)]
    assert flags == [(GAP,), (), (), (), (), ()]


def test_estimates_of_a_part_are_scaled_to_the_population() -> None:
    """At the only epoch half are there: twice as many are counted."""
    asked = law(23, 1)
    aggregator = ShuffledItemTreeAggregator(asked)
    words = np.repeat(np.arange(23), 80 + 50 * (np.arange(23) == 3))
    aggregator.add(1, words.astype(asked.word_form.dtype)[:, None], None)
    attendance = Attendance.empty(EPOCHS)
    attendance.set(1, MINIMUM, 2 * MINIMUM)
    estimate = aggregator.estimate(1, attendance)
    expected = np.zeros(20)
    expected[3] = 100
    assert estimate.values == pytest.approx(expected)
    assert estimate.standard_deviation > 2 * math.sqrt(80)


def test_words_that_are_not_due_are_refused() -> None:
    asked = law(23, 2)
    aggregator = ShuffledItemTreeAggregator(asked)
    dtype = asked.word_form.dtype
    for epoch, orders in ((1, 1), (2, 2), (4, 3)):
        most = orders * 2 * asked.hashes.words
        aggregator.check_words(epoch, np.array([[most - 1]], dtype))
        with pytest.raises(ValueError, match=f"word {most} at epoch {epoch}"):
            aggregator.add(epoch, np.array([[most]], dtype), None)
    with pytest.raises(ValueError, match="two different laws"):
        aggregator.merge(ShuffledItemTreeAggregator(law(5, 2)))


def test_counts_survive_their_bytes() -> None:
    whole = send(law(5, 2), values(2), seeded_generator(1))
    restored = ShuffledItemTreeAggregator.from_bytes(whole.law, whole.to_bytes())
    assert restored.to_bytes() == whole.to_bytes()
    attendance = Attendance.constant(EPOCHS, USERS)
    one, other = (each.estimate(EPOCHS, attendance) for each in (whole, restored))
    assert (one.values == other.values).all()
    with pytest.raises(ValueError, match=r"bytes|counts"):
        ShuffledItemTreeAggregator.from_bytes(whole.law, whole.to_bytes()[:-1])
