from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.estimate import GAP, NORMAL_95
from dpstream.aggregators.future_rand import Estimator, FutureRandAggregator, predicted_variances
from dpstream.randomizers.dyadic import FutureRandLaw, orders_due
from dpstream.randomizers.future_rand import NEWCOMER, FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator


class TestCounting:
    LAW = calibrate(FutureRandParameters(1.0, 2), 8)

    def test_reports_are_counted_by_interval_and_sign(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        aggregator.add(4, _words(0, 1, 1, 2, 5, 5, 5), None)
        aggregator.add(4, _words(4, 5), np.array([7, 2**32 - 1], np.uint32))
        assert aggregator.tree.node(0, 4).tolist() == [1, 2, 0, 0]
        assert aggregator.tree.node(1, 2).tolist() == [1, 0, 0, 0]
        assert aggregator.tree.node(2, 1).tolist() == [7, 2**32 + 2, 0, 0]

    @pytest.mark.parametrize(
        ("epoch", "words", "complaint"),
        [
            (3, [[0], [2]], "word 2 at epoch 3, where the words due are 0 to 1,"),
            (8, [[8]], "word 8 at epoch 8, where the words due are 0 to 7"),
            (6, [[255]], "word 255 at epoch 6"),
            (0, [[0]], "epoch 0, the horizon has 8 epochs"),
            (9, [[0]], "epoch 9, the horizon has 8 epochs"),
            (1, [[0, 0]], r"words of epoch 1 are uint8 of shape \(1, 2\)"),
            (1, [0], r"words of epoch 1 are uint8 of shape \(1,\)"),
        ],
    )
    def test_words_that_cannot_be_are_refused(
        self, epoch: int, words: list[list[int]], complaint: str
    ) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        with pytest.raises(ValueError, match=complaint):
            aggregator.check_words(epoch, np.array(words, np.uint8))
        with pytest.raises(ValueError, match=complaint):
            aggregator.add(epoch, np.array(words, np.uint8), None)
        assert aggregator.to_bytes() == b""


class TestEstimate:
    """By hand: signs are given, so that means are round numbers."""

    LAW = calibrate(FutureRandParameters(1.0, 2), 8)
    GAPS = LAW.c_gaps

    def test_partial_sums_of_the_prefix_are_scaled_and_added(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, order=1, index=1, negative=45, positive=55)
        _add(aggregator, order=0, index=3, negative=12, positive=8)
        estimate = aggregator.estimate(3, Attendance.constant(8, 1000))
        value = 1000 * 0.1 / self.GAPS[1] - 1000 * 0.2 / self.GAPS[0]
        # 100 reports: variance estimated. 20 reports: bounded.
        variance = (1000 / self.GAPS[1]) ** 2 * (1 - 0.1**2) / 99
        variance += (1000 / self.GAPS[0]) ** 2 / 20
        assert estimate.value == pytest.approx(value, rel=1e-12)
        assert estimate.standard_deviation == pytest.approx(math.sqrt(variance), rel=1e-12)
        assert estimate.low == pytest.approx(value - NORMAL_95 * math.sqrt(variance), rel=1e-12)
        assert estimate.high == pytest.approx(value + NORMAL_95 * math.sqrt(variance), rel=1e-12)
        assert (estimate.reports, estimate.population, estimate.flags) == (120, 1000, ())

    def test_the_variance_is_estimated_from_thirty_reports_on(self) -> None:
        for received, divisor in ((29, 29), (30, 29), (31, 30)):
            aggregator = FutureRandAggregator(self.LAW)
            _add(aggregator, 0, 1, 0, received)
            estimate = aggregator.estimate(1, Attendance.constant(8, 10))
            # All signs alike: no reason to believe in less variance than c_gap leaves.
            gap = self.GAPS[0]
            variance = (1 if received < 30 else 1 - gap**2) / divisor
            assert estimate.standard_deviation == pytest.approx(10 / gap * math.sqrt(variance))

    def test_newcomers_count_apart(self) -> None:
        """30 are enrolled for epoch 5, of whom 25 are there."""
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 2, 1, 0, 100)
        _add(aggregator, 0, 5, 0, 100)
        aggregator.add(5, _words(*[NEWCOMER] * 2, *[NEWCOMER + 1] * 8), None)
        attendance = Attendance.constant(8, 50)
        for epoch in range(5, 9):
            attendance.set(epoch, contributors=60, population=80)
        estimate = aggregator.estimate(5, attendance)
        reporting = self.GAPS[0] * self.LAW.order_probabilities[0] * 60 / 80
        expected = 50 / self.GAPS[2] + 50 / self.GAPS[0] + (8 - 2) / reporting
        assert estimate.value == pytest.approx(expected)
        assert estimate.population == 80
        assert estimate.reports == 210

    def test_a_missing_interval_is_made_up_of_its_halves(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 1, 1, 0, 40)
        _add(aggregator, 0, 3, 0, 50)
        _add(aggregator, 0, 4, 0, 60)
        estimate = aggregator.estimate(4, Attendance.constant(8, 10))
        assert estimate.value == pytest.approx(10 / self.GAPS[1] + 2 * 10 / self.GAPS[0])
        assert (estimate.reports, estimate.flags) == (150, ())

    def test_what_no_report_covers_is_taken_as_zero_widened_and_flagged(self) -> None:
        """Epoch 4 was withheld: only its last interval of length 1 is unknown."""
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 0, 1, 20, 30)
        _add(aggregator, 0, 2, 0, 0)
        _add(aggregator, 1, 1, 0, 100)
        _add(aggregator, 0, 3, 40, 10)
        estimate = aggregator.estimate(4, Attendance.constant(8, 1000))
        scale = 1000 / self.GAPS[0]
        known = 1000 / self.GAPS[1] - 0.6 * scale
        typical = scale * math.sqrt((0.2**2 + 0.6**2) / 2)
        assert estimate.flags == (GAP,)
        assert estimate.value == pytest.approx(known)
        assert estimate.standard_deviation is not None
        half_width = NORMAL_95 * (estimate.standard_deviation + typical)
        assert estimate.high == pytest.approx(known + half_width)
        assert estimate.low == pytest.approx(known - half_width)

    def test_a_gap_lasts_until_an_interval_covers_it(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        for epoch in range(1, 9):
            for order in range(orders_due(epoch)):
                if epoch != 3:
                    _add(aggregator, order, epoch >> order, 50, 60)
        flags = {
            epoch: aggregator.estimate(epoch, Attendance.constant(8, 1000)).flags
            for epoch in range(1, 9)
        }
        assert [epoch for epoch, flag in flags.items() if flag == (GAP,)] == [3]

    def test_nothing_known_of_a_length_widens_by_the_population(self) -> None:
        estimate = FutureRandAggregator(self.LAW).estimate(5, Attendance.constant(8, 100))
        assert (estimate.value, estimate.standard_deviation) == (0.0, 0.0)
        assert (estimate.reports, estimate.flags) == (0, (GAP,))
        assert estimate.high == pytest.approx(NORMAL_95 * 200)

    def test_an_interval_is_combined_with_its_halves_by_their_numbers_of_reports(self) -> None:
        aggregator = FutureRandAggregator(self.LAW)
        _add(aggregator, 1, 1, 0, 100)
        _add(aggregator, 0, 1, 50, 150)
        _add(aggregator, 0, 2, 100, 100)
        estimate = aggregator.estimate(2, Attendance.constant(8, 1000))
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
        assert estimate.standard_deviation == pytest.approx(deviation)
        assert estimate.reports == 500

    def test_going_on_is_the_same_as_starting_again(self) -> None:
        """Whatever was estimated before, and whenever the counts arrived."""
        rng = np.random.default_rng(2)
        attendance = Attendance.constant(8, 500)
        online = FutureRandAggregator(self.LAW)
        for epoch in range(1, 9):
            words = rng.integers(0, 2 * orders_due(epoch), (100, 1), dtype=np.uint8)
            online.add(epoch, words, None)
            again = FutureRandAggregator.from_bytes(self.LAW, online.to_bytes())
            assert online.estimate(epoch, attendance) == again.estimate(epoch, attendance)
        late = FutureRandAggregator(self.LAW)
        late.add(3, _words(*[1] * 90), None)
        online.merge(late)
        again = FutureRandAggregator.from_bytes(self.LAW, online.to_bytes())
        for epoch in (8, 3, 5):
            assert online.estimate(epoch, attendance) == again.estimate(epoch, attendance)
        attendance = Attendance.constant(8, 700)
        assert online.estimate(5, attendance) == again.estimate(5, attendance)


class TestAccuracy:
    """Real devices, against the truth. Thresholds also reject noise scaled by 0.7 and 1.3."""

    HORIZON = 32
    DEVICES = 3000

    def test_before_anybody_was_enrolled_nothing_is_missing(self) -> None:
        """A job whose first producer begins at epoch 6: no gaps, whatever the intervals."""
        law = calibrate(FutureRandParameters(8.0, 2), 8)
        devices, aggregator = FutureRand(law), FutureRandAggregator(law)
        attendance = Attendance.empty(8)
        devices.enrol(10_000, seeded_generator(1))
        for epoch in (6, 7, 8):
            values = np.ones(10_000, np.int8)
            aggregator.add(
                epoch, devices.report(epoch, values, None, seeded_generator(2, epoch)), None
            )
            attendance.set(epoch, 10_000, 10_000)
            estimate = aggregator.estimate(epoch, attendance)
            assert estimate.flags == ()
            assert estimate.value is not None
            assert estimate.standard_deviation is not None
            assert estimate.standard_deviation < 500
            assert abs(estimate.value - 10_000) < 6.5 * estimate.standard_deviation
        assert not aggregator.smoothed(8, attendance).gaps.any()

    def test_silence_at_random_does_not_bias(self) -> None:
        """All values go to 1 while three in ten devices are silent at every epoch.

        The change comes at epoch 2. Devices that were silent then and filled in the value they last
        had would report it at epoch 3, when the others have reported it for them: 0.3 too many.
        """
        law = calibrate(FutureRandParameters(8.0, 2), 8)
        devices, rng = 200_000, np.random.default_rng(1)
        streams = np.zeros((9, devices), np.int8)
        streams[2:] = 1
        aggregator = _run(law, streams, 1, present=rng.random((9, devices)) < 0.7)
        for epoch in range(1, 9):
            estimate = aggregator.estimate(epoch, Attendance.constant(8, devices))
            assert estimate.value is not None
            assert estimate.standard_deviation is not None
            assert estimate.standard_deviation < 0.3 * devices / 13
            error = estimate.value - int(streams[epoch].sum())
            assert abs(error) < 6.5 * estimate.standard_deviation

    def test_a_plan_needs_the_orders_of_the_prefix(self) -> None:
        law = calibrate(FutureRandParameters(1.0, 2), 4)
        law = FutureRandLaw(4, 1.0, (1, 1, 0), law.composed)
        variances = predicted_variances(law, 4, "prefix")
        assert variances[3] == math.inf
        expected = 1 / (0.5 * law.c_gaps[1] ** 2) + 1 / (0.5 * law.c_gaps[0] ** 2)
        assert variances[2] == pytest.approx(expected)
        assert math.isfinite(predicted_variances(law, 4, "tree")[3])


def test_estimates_are_the_same_to_the_bit_whenever_they_are_made() -> None:
    law = calibrate(FutureRandParameters(epsilon=2.0, changes=2), last_epoch=2_048)
    rng = np.random.default_rng(8)
    step_by_step, at_once = FutureRandAggregator(law), FutureRandAggregator(law)
    attendance = Attendance.empty(2_048)
    population, known = 0, []
    for epoch in range(1, 1_501):
        population += int(rng.integers(0, 3))
        attendance.set(epoch, population * 3 // 4, population)
        # Some windows are lost; of others only some orders are heard of.
        if rng.random() < 0.9:
            most = 2 * orders_due(epoch) if rng.random() < 0.7 else 2
            words = rng.integers(0, most, (int(rng.integers(1, 60)), 1), np.uint8)
            step_by_step.add(epoch, words, None)
            at_once.add(epoch, words, None)
        known.append(step_by_step.estimate(epoch, attendance))
    for epoch in (1_500, 1_024, 1_025, 7):
        assert at_once.estimate(epoch, attendance) == known[epoch - 1]


def _words(*words: int) -> NDArray[np.uint8]:
    return np.array(words, np.uint8)[:, None]


def _add(
    aggregator: FutureRandAggregator, order: int, index: int, negative: int, positive: int
) -> None:
    words = _words(*[2 * order] * negative, *[2 * order + 1] * positive)
    aggregator.add(index << order, words, None)


def _run(
    law: FutureRandLaw,
    streams: NDArray[np.int8],
    seed: int,
    present: NDArray[np.bool_] | None = None,
    estimator: Estimator = "tree",
) -> FutureRandAggregator:
    devices, aggregator = FutureRand(law), FutureRandAggregator(law, estimator)
    devices.enrol(streams.shape[1], seeded_generator(seed))
    rng = seeded_generator(seed, 1)
    for epoch in range(1, law.horizon + 1):
        here = None if present is None else present[epoch]
        aggregator.add(epoch, devices.report(epoch, streams[epoch], here, rng), None)
    assert devices.frozen == 0
    return aggregator
