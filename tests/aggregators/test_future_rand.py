from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95, Participation
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.randomizers.future_rand import NEWCOMER, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate


class TestEstimate:
    """Expected values are computed by hand: signs are given, so that means are round numbers."""

    LAW = calibrate(FutureRandParameters(1.0, 2), 8)
    GAPS = LAW.c_gaps

    def test_estimate_is_the_sum_of_its_scaled_interval_sums(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, order=1, index=1, negative=45, positive=55)
        _add(aggregator, order=0, index=3, negative=12, positive=8)
        estimate = aggregator.estimate(3, Participation.constant(8, 1000))
        value = 1000 * 0.1 / self.GAPS[1] - 1000 * 0.2 / self.GAPS[0]
        # With 100 reports the variance is estimated, with 20 it is bounded.
        variance = (1000 / self.GAPS[1]) ** 2 * (1 - 0.1**2) / 99
        variance += (1000 / self.GAPS[0]) ** 2 / 20
        assert estimate.value == pytest.approx(value, rel=1e-12)
        assert estimate.standard_error == pytest.approx(math.sqrt(variance), rel=1e-12)
        assert estimate.ci95_low == pytest.approx(
            value - NORMAL_95 * math.sqrt(variance), rel=1e-12
        )
        assert estimate.ci95_high == pytest.approx(
            value + NORMAL_95 * math.sqrt(variance), rel=1e-12
        )
        assert (estimate.reports, estimate.population, estimate.flags) == (120, 1000, ())

    def test_variance_is_estimated_from_at_least_thirty_reports(self) -> None:
        for received, divisor in ((29, 29), (30, 29), (31, 30)):
            aggregator = FutureRandAggregator(self.LAW)
            _add(aggregator, 0, 1, 0, received)
            estimate = aggregator.estimate(1, Participation.constant(8, 10))
            # All signs are equal: no evidence of a smaller variance than c_gap implies.
            gap = self.GAPS[0]
            variance = (1 if received < 30 else 1 - gap**2) / divisor
            assert estimate.standard_error == pytest.approx(10 / gap * math.sqrt(variance))

    def test_reports_from_newcomers_are_scaled_separately(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 2, 1, 0, 100)
        _add(aggregator, 0, 5, 0, 100)
        aggregator.add(5, _words(*[NEWCOMER] * 2, *[NEWCOMER + 1] * 8), None)
        participation = Participation.constant(8, 50)
        for epoch in range(5, 9):
            participation.set(epoch, contributors=60, population=80)
        estimate = aggregator.estimate(5, participation)
        reporting = self.GAPS[0] * self.LAW.order_probabilities[0] * 60 / 80
        expected = 50 / self.GAPS[2] + 50 / self.GAPS[0] + (8 - 2) / reporting
        assert estimate.value == pytest.approx(expected)
        assert estimate.population == 80
        assert estimate.reports == 210

    def test_time_interval_without_reports_counts_as_0_and_flags_the_estimate(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 0, 1, 20, 30)
        _add(aggregator, 0, 2, 0, 0)
        _add(aggregator, 1, 1, 0, 100)
        _add(aggregator, 0, 3, 40, 10)
        estimate = aggregator.estimate(4, Participation.constant(8, 1000))
        scale = 1000 / self.GAPS[0]
        known = 1000 / self.GAPS[1] - 0.6 * scale
        typical = scale * math.sqrt((0.2**2 + 0.6**2) / 2)
        assert estimate.flags == (GAP,)
        assert estimate.value == pytest.approx(known)
        assert estimate.standard_error is not None
        half_width = NORMAL_95 * (estimate.standard_error + typical)
        assert estimate.ci95_high == pytest.approx(known + half_width)
        assert estimate.ci95_low == pytest.approx(known - half_width)

    def test_time_interval_and_both_its_halves_are_weighted_by_their_report_counts(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 1, 1, 0, 100)
        _add(aggregator, 0, 1, 50, 150)
        _add(aggregator, 0, 2, 100, 100)
        estimate = aggregator.estimate(2, Participation.constant(8, 1000))
        own, halves = 1000 / self.GAPS[1], 1000 * 0.5 / self.GAPS[0]
        own_noise = 1 / (100 * self.GAPS[1] ** 2)
        halves_noise = 2 / (200 * self.GAPS[0] ** 2)
        share = halves_noise / (own_noise + halves_noise)
        assert estimate.value == pytest.approx(share * own + (1 - share) * halves)
        left = 1000 / self.GAPS[0] * math.sqrt((1 - self.GAPS[0] ** 2) / 199)
        right = 1000 / self.GAPS[0] * math.sqrt(1 / 199)
        deviation = math.hypot(
            share * 1000 / self.GAPS[1] * math.sqrt((1 - self.GAPS[1] ** 2) / 99),
            (1 - share) * math.hypot(left, right),
        )
        assert estimate.standard_error == pytest.approx(deviation)
        assert estimate.reports == 500


def _words(*words: int) -> NDArray[np.uint8]:
    return np.array(words, np.uint8)[:, None]


def _add(
    aggregator: FutureRandAggregator, order: int, index: int, negative: int, positive: int
) -> None:
    words = _words(*[2 * order] * negative, *[2 * order + 1] * positive)
    aggregator.add(index << order, words, None)
