"""From messages per interval to counts, online and looking back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aggregators.attendance import Attendance
from aggregators.estimate import GAP
from aggregators.shuffled_tree import (
    ShuffledTreeAggregator,
    predicted_deviations,
    predicted_smoothed_deviations,
)
from randomizers.accounting import counting_tree
from randomizers.accounting.cell_noise import PoissonNoise
from randomizers.cell_noise_law import CellNoiseLaw
from randomizers.randomness import seeded_generator
from randomizers.shuffled_tree import ShuffledTree, ShuffledTreeLaw

MINIMUM = 50
MEANS = (600.0, 1_000.0, 1_400.0)


def law(changes: int = 2, last_epoch: int = 8, *, by_stage: bool = False) -> ShuffledTreeLaw:
    noises = tuple(
        CellNoiseLaw("shuffle" if by_stage else "poisson", mean, MINIMUM) for mean in MEANS
    )
    return ShuffledTreeLaw(last_epoch, 1.0, 1e-6, changes, noises)


def counted(law: ShuffledTreeLaw, messages: dict[int, list[int]]) -> ShuffledTreeAggregator:
    """By epoch, how often the words 0, 1, ..."""
    aggregator = ShuffledTreeAggregator(law)
    for epoch, counts in messages.items():
        words = np.arange(len(counts), dtype=np.uint8)[:, None]
        kept = np.array(counts) > 0
        aggregator.add(epoch, words[kept], np.array(counts, np.uint32)[kept])
    return aggregator


@pytest.mark.parametrize("by_stage", [False, True])
def test_an_interval_is_plus_minus_minus_scaled_to_everybody(by_stage: bool) -> None:
    """80 of 100 devices were there at the end of epoch 1, 30 became 1 and 10 became 0."""
    dummies = 600 if by_stage else 960
    attendance = Attendance.constant(8, 100)
    attendance.set(1, 80, 100)
    aggregator = counted(law(by_stage=by_stage), {1: [dummies + 30, dummies + 10]})
    estimate = aggregator.estimate(1, attendance)
    assert estimate.value == pytest.approx(25)
    noise = 1.25**2 * 2 * dummies
    # Half of those present have changed; of those who were silent as many may, or not.
    sampling = 100**2 * (40 / 80) * (20 / 99) / 80
    assert estimate.standard_deviation == pytest.approx(math.sqrt(noise + sampling))
    assert estimate.flags == ()


def test_with_one_change_dummies_are_taken_off() -> None:
    aggregator = counted(law(changes=1), {1: [1_230]})
    estimate = aggregator.estimate(1, Attendance.constant(8, 100))
    assert estimate.value == pytest.approx(30)
    assert estimate.standard_deviation == pytest.approx(math.sqrt(1_200))
    with pytest.raises(ValueError, match="even ones"):
        counted(law(changes=1), {1: [0, 1]})


def test_words_of_intervals_that_are_not_over_are_refused() -> None:
    for epoch, due in ((1, 1), (2, 2), (3, 1), (4, 3), (8, 3)):
        counted(law(), {epoch: [1] * (2 * due)})
        with pytest.raises(ValueError, match=f"word {2 * due} at epoch {epoch}"):
            counted(law(), {epoch: [1] * (2 * due + 1)})


def test_halves_and_whole_are_weighted_by_their_noise() -> None:
    """Two epochs: their own changes say 20 and 0, both together 40."""
    aggregator = counted(law(), {1: [1_220, 1_200], 2: [1_200, 1_200, 2_040, 2_000]})
    everybody = Attendance.constant(8, 100)
    estimate = aggregator.estimate(2, everybody)
    halves, whole = 2 * 2 * 1_200, 2 * 2_000
    assert estimate.value == pytest.approx((20 / halves + 40 / whole) / (1 / halves + 1 / whole))
    assert estimate.standard_deviation == pytest.approx((1 / halves + 1 / whole) ** -0.5)


def test_a_withheld_window_is_missing_and_longer_intervals_stand_in() -> None:
    everybody, attendance = (Attendance.constant(8, 100) for _ in range(2))
    attendance.set(1, MINIMUM - 1, 100)
    aggregator = counted(law(), {2: [1_205, 1_200, 2_025, 2_000]})
    first, second = (aggregator.estimate(epoch, attendance) for epoch in (1, 2))
    assert first.flags == (GAP,)
    # It is not known to be 0, as it would be if the window had been released.
    assert first.high is not None
    assert first.high > 100
    assert second.flags == ()
    assert second.value == pytest.approx(25)
    assert second.standard_deviation == pytest.approx(math.sqrt(4_000))
    assert counted(law(), {}).estimate(1, everybody).flags == ()
    looked_back = aggregator.smoothed(2, attendance)
    assert looked_back.values[:, 0] == pytest.approx([20, 25], rel=1e-5)
    assert not looked_back.gaps.any()


@pytest.mark.parametrize("last_epoch", [6, 8])
@pytest.mark.parametrize("changes", [1, 2])
def test_the_plan_is_what_is_published(changes: int, last_epoch: int) -> None:
    """The interval of all eight epochs is left out."""
    users, asked = 80, law(changes, last_epoch)
    attendance = Attendance.constant(last_epoch, users)
    cells = {
        epoch: np.repeat(
            [round(noise.moments(users)[0]) for noise in asked.noises[: asked.orders_due(epoch)]],
            2,
        ).tolist()
        for epoch in range(1, last_epoch + 1)
    }
    if changes == 1:
        cells = {epoch: [n * (i % 2 == 0) for i, n in enumerate(c)] for epoch, c in cells.items()}
    aggregator = counted(asked, cells)
    published = [
        aggregator.estimate(epoch, attendance).standard_deviation
        for epoch in range(1, last_epoch + 1)
    ]
    planned = predicted_deviations(asked, last_epoch, users)
    assert published == pytest.approx(planned)
    looked_back = predicted_smoothed_deviations(asked, last_epoch, users)
    assert aggregator.smoothed(last_epoch, attendance).standard_deviations == pytest.approx(
        looked_back
    )
    assert (looked_back <= planned * (1 + 1e-9)).all()
    variances = counting_tree.interval_variances(
        [PoissonNoise(noise.moments(users)[0]) for noise in asked.noises], changes
    )
    expected = counting_tree.online_error(variances, last_epoch)
    assert math.sqrt(float(np.square(planned).mean())) == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [1, pytest.param(3, marks=pytest.mark.verify)])
def test_estimates_are_unbiased_with_silence_and_newcomers(changes: int) -> None:
    """Silent devices do not change meanwhile; half of the users come at epoch 3, with value 1."""
    users, runs, asked = 300, 400, law(changes)
    rng = np.random.default_rng(7)
    values = np.zeros((8, users), np.int8)
    values[2:, users // 2 :] = 1
    values[rng.integers(0, 2), : users // 4] = 1
    values[2:, : users // 4] = 1
    quiet = np.arange(users) % 5 == 0
    errors, looked_back = np.empty((2, runs, 8))
    for run in range(runs):
        random = seeded_generator(run)
        devices, aggregator = ShuffledTree(asked), ShuffledTreeAggregator(asked)
        attendance = Attendance.empty(8)
        truth = []
        for epoch in range(1, 9):
            if epoch in (1, 3):
                devices.enrol(users // 2, random)
            now = values[2 if epoch > 2 else 0, : devices.population].copy()
            if changes > 2 and epoch > 6:
                now[~quiet[: len(now)]] = 0
            # Those who never change between epochs 4 and 7 may be silent then.
            away = (random.random(len(now)) < 0.5) & (3 < epoch < 7)
            reports = devices.report(epoch, now, ~away, random)
            aggregator.add(epoch, reports.values, reports.counts)
            attendance.set(epoch, int((~away).sum()), len(now))
            estimate = aggregator.estimate(epoch, attendance)
            assert estimate.value is not None
            assert estimate.standard_deviation is not None
            truth.append(int(now.sum()))
            errors[run, epoch - 1] = (estimate.value - truth[-1]) / estimate.standard_deviation
        found = aggregator.smoothed(8, attendance)
        looked_back[run] = (found.values[:, 0] - truth) / found.standard_deviations
    for standardized in (errors, looked_back):
        means = standardized.mean(axis=0) * math.sqrt(runs)
        assert np.abs(means).max() < 7
        assert np.abs(means + 0.5 * math.sqrt(runs)).min() > 1
        assert (np.square(standardized).mean(axis=0) < 1.4).all()
        assert (np.square(standardized).mean(axis=0) > 0.65).all()


def test_counts_of_another_law_are_not_merged() -> None:
    with pytest.raises(ValueError, match="two different laws"):
        counted(law(1), {}).merge(counted(law(2), {}))
