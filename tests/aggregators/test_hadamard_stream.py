"""Items, server side: what is counted, and estimates as accurate as predicted for every domain."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from aggregators.attendance import Attendance
from aggregators.estimate import GAP, NORMAL_95
from aggregators.hadamard_stream import HadamardStreamAggregator
from aggregators.item_estimates import ItemEstimates
from pipeline.protocols.future_rand import FutureRandForecast
from pipeline.protocols.hadamard_stream import HadamardStreamForecast
from randomizers.future_rand import FutureRandParameters
from randomizers.future_rand.calibration import calibrate as future_rand_calibrate
from randomizers.hadamard_stream import (
    HadamardStream,
    HadamardStreamLaw,
    HadamardStreamParameters,
)
from randomizers.hadamard_stream.calibration import calibrate
from randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10


def law_for(
    items: int, changes: int = 2, last_epoch: int = 8, epsilon: float = 1.0
) -> HadamardStreamLaw:
    return calibrate(
        HadamardStreamParameters(epsilon, changes, tuple(map(str, range(items)))), last_epoch
    )


def words(*of: tuple[int, int, int]) -> NDArray[np.uint32]:
    """Reports: row, order and sign bit of each."""
    return np.array([[(row * 32 + order) * 2 + sign] for row, order, sign in of], np.uint32)


class TestCounting:
    LAW = law_for(3)

    def test_signs_are_added_up_by_interval_and_row(self) -> None:
        aggregator = HadamardStreamAggregator(self.LAW)
        aggregator.add(4, words((0, 0, 1), (0, 0, 1), (3, 0, 0), (2, 2, 1)), None)
        aggregator.add(4, words((2, 2, 0), (1, 1, 1)), np.array([2**32 - 1, 5], np.uint32))
        assert aggregator.tree.node(0, 4).tolist() == [3, 2, 0, 0, -1]
        assert aggregator.tree.node(1, 2).tolist() == [5, 0, 5, 0, 0]
        assert aggregator.tree.node(2, 1).tolist() == [2**32, 0, 0, 2 - 2**32, 0]

    @pytest.mark.parametrize(
        ("epoch", "wrong", "message"),
        [
            (1, words((0, 1, 0)), "word 2 at epoch 1: row 0 and order 1, the 4 rows"),
            (2, words((0, 0, 0), (4, 1, 0)), "word 258 at epoch 2: row 4 and order 1"),
            (4, words((1, 31, 1)), "row 1 and order 31, .* the orders due are 0, 1, 2"),
            (9, words((0, 0, 0)), "epoch 9, the horizon has 8 epochs"),
            (0, words((0, 0, 0)), "epoch 0"),
            (1, words((0, 0, 0)).astype(np.uint64), "must be uint32 of shape"),
            (1, words((0, 0, 0))[:, 0], "must be uint32 of shape"),
        ],
    )
    def test_what_cannot_be_a_report_is_refused(
        self, epoch: int, wrong: NDArray[np.uint32], message: str
    ) -> None:
        aggregator = HadamardStreamAggregator(self.LAW)
        with pytest.raises(ValueError, match=message):
            aggregator.add(epoch, wrong, None)
        assert aggregator.to_bytes() == HadamardStreamAggregator(self.LAW).to_bytes()

    @pytest.mark.parametrize("cells", [[1, 2, 0, 0, 0], [2, 1, 0, -2, 0], [-3, 1, 0, 0, 0]])
    def test_a_state_with_more_signs_than_reports_is_refused(self, cells: list[int]) -> None:
        aggregator = HadamardStreamAggregator(self.LAW)
        aggregator.tree.add(1, np.array([cells]))
        with pytest.raises(ValueError, match="complete at epoch 1 has more signs than reports"):
            HadamardStreamAggregator.from_bytes(self.LAW, aggregator.to_bytes())

    def test_laws_do_not_mix(self) -> None:
        with pytest.raises(ValueError, match="two different laws"):
            HadamardStreamAggregator(self.LAW).merge(HadamardStreamAggregator(law_for(2)))


class TestEstimates:
    def test_without_noise_it_is_the_count_itself(self) -> None:
        """Each row's share of all users, with the sign that its entry gives: exact for any items.

        What devices send at c_gap 1 on average, in an interval in which everybody gets an item.
        """
        law = law_for(5)
        having = np.array([0, 40, 0, 24, 8, 8, 0, 0])
        aggregator = HadamardStreamAggregator(law)
        rows = np.arange(8)
        entries = 1 - 2 * (np.bitwise_count(rows[:, None] & rows[None, :]).astype(int) & 1)
        with_plus = (having[1:] * (entries[:, 1:] > 0)).sum(axis=1)
        for row, ones in enumerate(with_plus.tolist()):
            others = int(having.sum()) - ones
            counts = np.array([2 * ones + others, others], np.uint32)
            aggregator.add(1, words((row, 0, 1), (row, 0, 0)), counts)
        estimate = aggregator.estimate(1, Attendance.constant(8, 80))
        gap = law.future_rand.c_gaps[0]
        assert estimate.values * gap == pytest.approx(having[1:6])
        assert estimate.standard_deviation == pytest.approx(2 / gap * 80 / math.sqrt(8 * 160))
        assert (estimate.reports, estimate.population, estimate.flags) == (8 * 160, 80, ())

    def test_an_interval_without_reports_is_flagged_and_widens_all(self) -> None:
        law = law_for(3)
        aggregator = HadamardStreamAggregator(law)
        attendance = Attendance.constant(8, 500)
        aggregator.add(1, words((0, 0, 1), (1, 0, 1), (2, 0, 0)), None)
        before, after = (aggregator.estimate(epoch, attendance) for epoch in (1, 3))
        assert before.flags == ()
        assert before.half_width == pytest.approx(NORMAL_95 * before.standard_deviation)
        assert after.flags == (GAP,)
        assert after.half_width > NORMAL_95 * after.standard_deviation

    def test_unknown_intervals_count_as_large_as_known_ones_of_items(self) -> None:
        """The typical increment is that of the items, not of what their rows hold."""
        law = law_for(3)
        aggregator = HadamardStreamAggregator(law)
        attendance = Attendance.constant(8, 500)
        aggregator.add(1, words((3, 0, 1)), None)
        known = aggregator.estimate(1, attendance)
        # A single row's transform is flat: every item has the same square.
        size = abs(known.values[0])
        assert abs(known.values) == pytest.approx(size)
        unknown = aggregator.estimate(3, attendance)
        widening = unknown.half_width - NORMAL_95 * unknown.standard_deviation
        assert widening >= NORMAL_95 * size


Silence = Callable[[int, np.random.Generator], NDArray[np.bool_]]


def run(
    law: HadamardStreamLaw,
    values: NDArray[np.integer],
    seed: int,
    present: Silence | None = None,
) -> tuple[list[ItemEstimates], NDArray[np.float64]]:
    """Estimates of every epoch, and their errors, shape (epochs, items)."""
    epochs, devices = values.shape
    population, aggregator = HadamardStream(law), HadamardStreamAggregator(law)
    population.enrol(devices, seeded_generator(seed))
    attendance = Attendance.constant(epochs, devices)
    estimates = []
    for epoch, now in enumerate(values, start=1):
        here = None if present is None else present(epoch, np.random.default_rng((seed, epoch)))
        reports = population.report(epoch, now, here, seeded_generator(seed, epoch))
        aggregator.add(epoch, reports, None)
        estimates.append(aggregator.estimate(epoch, attendance))
    truth = np.array([np.bincount(now, minlength=law.items + 1)[1:] for now in values])
    return estimates, np.array([estimate.values for estimate in estimates]) - truth


def changing_items(items: int, epochs: int, devices: int, changes: int) -> NDArray[np.int16]:
    """Shape (epochs, devices): an item from the first epoch on, then changes at random epochs.

    Items are drawn by Zipf's law, so that some are had by many and most by few.
    """
    rng = np.random.default_rng(items)
    weights = 1 / np.arange(1, items + 1)
    held = rng.choice(items, (changes + 1, devices), p=weights / weights.sum()) + 1
    at = np.sort(rng.integers(1, epochs + 1, (changes, devices)), axis=0)
    passed = (np.arange(1, epochs + 1)[:, None, None] >= at).sum(axis=1)
    return np.take_along_axis(held, passed, axis=0).astype(np.int16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "seeds"),
    [pytest.param(8, 45, marks=pytest.mark.verify), (256, 2), (4096, 1)],
)
def test_every_item_errs_as_predicted_whatever_the_domain(items: int, seeds: int) -> None:
    """100,000 users, epsilon 1, 64 epochs, two changes: the reference has about 8,633.

    Up to 3 % of it is given for what is smoothed at the end.
    """
    devices, epochs = 100_000, 64
    law = law_for(items, 2, epochs)
    predicted = HadamardStreamForecast(law, epochs).standard_deviations(devices)
    assert math.sqrt(np.square(predicted).mean()) < 1.03 * 8_633
    assert law.frozen_share == 0
    values = changing_items(items, epochs, devices, 2)
    errors, published = [], []
    for seed in range(seeds):
        estimates, deviations = run(law, values, seed)
        errors.append(deviations)
        published.append([estimate.standard_deviation for estimate in estimates])
    assert np.mean(published, axis=0) == pytest.approx(predicted, rel=0.03)
    # Errors of one epoch are independent over seeds and, nearly, over items.
    count = seeds * items
    for epoch in (32, 63):
        standardized = np.stack(errors)[:, epoch - 1].ravel() / predicted[epoch - 1]
        for scale in (1.0, 0.7, 1.4):
            squares = float(np.square(scale * standardized).sum())
            fit = 2 * min(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count))
            assert (fit > FALSE_ALARM) == (scale == 1.0), (epoch, scale)


def test_the_prediction_is_twice_that_of_a_boolean_with_as_many_signs() -> None:
    law = law_for(300, 4, 64)
    boolean = FutureRandForecast(
        future_rand_calibrate(FutureRandParameters(1.0, law.signs), 64), 64
    )
    assert HadamardStreamForecast(law, 64).standard_deviations(1000) == pytest.approx(
        2 * boolean.standard_deviations(1000)
    )


@pytest.mark.verify
def test_silent_devices_do_not_bias() -> None:
    """30 % of the devices are silent at random; users come, change and leave."""
    devices, epochs, seeds = 1_000, 8, 600
    law = law_for(3, 4, epochs, epsilon=8.0)
    values = np.full((epochs, devices), 2, np.int16)
    values[:3] = 1
    values[6:, : devices // 2] = 0
    errors, deviations = np.zeros((seeds, epochs, 3)), np.zeros((seeds, epochs, 1))
    for seed in range(seeds):
        estimates, errors[seed] = run(
            law, values, seed, lambda epoch, rng: rng.random(devices) < 0.7
        )
        deviations[seed, :, 0] = [estimate.standard_deviation for estimate in estimates]
    for shift in (0.0, 0.5, -0.5):
        means = (errors / deviations + shift).mean(axis=0) * math.sqrt(seeds)
        fits = 2 * stats.norm.sf(np.abs(means)) > FALSE_ALARM
        assert (fits == (shift == 0.0)).all(), shift


def test_frozen_devices_stay_where_they_are() -> None:
    """Three changes from one item to another and back, with no signs left after the first one."""
    law = calibrate(HadamardStreamParameters(16.0, 3, ("a", "b"), signs=1), 4)
    values = np.tile(np.array([[1], [2], [1], [2]]), 30_000)
    estimates, _ = run(law, values, 1)
    # The rows in which b is 1 for the first item keep it, and those in which it never was follow.
    assert estimates[0].values == pytest.approx([30_000, 0], abs=2_500)
    for later in estimates[1:]:
        assert later.values[0] > 5_000
