"""Items by letters, server side: what is counted, and what follows from the means of letters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import hadamard

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.estimate import GAP, NORMAL_95
from dpstream.aggregators.hadamard_values import HadamardValuesAggregator
from dpstream.aggregators.range_values import RangeValuesAggregator
from dpstream.pipeline.protocols.followed_forecasts import HadamardValuesForecast
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream.hadamard_values import (
    HadamardValues,
    HadamardValuesLaw,
    HadamardValuesParameters,
)
from dpstream.randomizers.value_stream.hadamard_values.calibration import calibrate
from dpstream.randomizers.value_stream.range_values import (
    LEVEL_SHIFT,
    RangeValues,
    RangeValuesParameters,
)
from dpstream.randomizers.value_stream.range_values.calibration import calibrate as range_calibrate

EPOCHS = 16
ITEMS = 5


def law_for(items: int = ITEMS, epsilon: float = 2.0, boosted: int = 3) -> HadamardValuesLaw:
    labels = tuple(map(str, range(items)))
    return calibrate(HadamardValuesParameters(epsilon, 3, labels, boosted), EPOCHS)


LAW = law_for()


def words(*of: tuple[int, int]) -> NDArray[np.uint32]:
    """Reports: row and letter of each."""
    return np.array([[row * 256 + letter] for row, letter in of], np.uint32)


def states_of_means(
    items: NDArray[np.int64], present: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """What users with these items, equally many on each row, send on average.

    Args:
        items: shape (epochs, users), 0 for none.
        present: shape (epochs,), how many of all users on all rows report.
    """
    law, matrix = LAW.booleans, hadamard(LAW.rows)
    spread = math.sqrt(law.clock) / law.gain
    users = items.shape[1]
    followed, before = np.zeros((LAW.rows, users)), np.zeros((LAW.rows, users))
    made = np.zeros((LAW.rows, users), int)
    states = []
    for now, reports in zip(items, present.tolist(), strict=True):
        tracked = np.where(now > 0, (matrix[:, now] + 1) / 2, 0)
        change = tracked - before
        followed = law.decay * followed + law.boost * change * (made < law.changes)
        made += change != 0
        before = tracked
        means = (tracked - 0.5 + followed).mean(axis=1) / spread
        letters = np.round(8 * means * reports / LAW.rows).astype(np.int64)
        states.append(np.concatenate([[reports], letters]))
    return states


def aggregator_of(states: list[NDArray[np.int64]]) -> HadamardValuesAggregator:
    """One whose epochs have these sums."""
    entry = np.dtype([("epoch", "<u8"), ("sums", "<i8", (1 + LAW.rows,))])
    entries = [(epoch, sums) for epoch, sums in enumerate(states, 1) if sums[0]]
    return HadamardValuesAggregator.from_bytes(LAW, np.array(entries, entry).tobytes())


class TestEstimates:
    USERS = 1_000
    EVERYBODY = 10**9

    def items(self) -> NDArray[np.int64]:
        """Shape (epochs, users): three changes at most, and some who have no item."""
        rng = np.random.default_rng(3)
        items = np.zeros((EPOCHS, self.USERS), np.int64)
        for user in range(self.USERS):
            first, *others = sorted(rng.choice(np.arange(EPOCHS), 3, replace=False).tolist())
            items[first:, user] = rng.integers(1, ITEMS + 1)
            for epoch in others[: user % 3]:
                items[epoch:, user] = rng.integers(0, ITEMS + 1)
        return items

    def truth(self, items: NDArray[np.int64], population: int) -> NDArray[np.float64]:
        held = (items[:, :, None] == np.arange(1, ITEMS + 1)).mean(axis=1)
        return np.asarray(population * held, np.float64)

    @pytest.mark.parametrize("share", [1, 3])
    def test_means_of_letters_give_the_counts_whoever_is_silent(self, share: int) -> None:
        items = self.items()
        present = np.full(EPOCHS, self.EVERYBODY)
        present[::2] //= share
        aggregator = aggregator_of(states_of_means(items, present))
        attendance = Attendance.constant(EPOCHS, self.EVERYBODY)
        for epoch, expected in enumerate(self.truth(items, self.EVERYBODY), start=1):
            found = aggregator.estimate(epoch, attendance)
            assert found is not None
            # Sums are whole numbers, and what is added up of them.
            assert found.values == pytest.approx(expected, abs=1e4)
            assert (found.reports, found.flags) == (present[epoch - 1], ())

    def test_errors_are_those_of_letters_and_rows(self) -> None:
        aggregator = aggregator_of([np.array([400, *[0] * LAW.rows])] * EPOCHS)
        forecast = HadamardValuesForecast(LAW, EPOCHS).standard_deviations(400)
        for epoch in range(1, EPOCHS + 1):
            found = aggregator.estimate(epoch, Attendance.constant(EPOCHS, 400))
            assert found is not None
            assert found.standard_deviation == pytest.approx(forecast[epoch - 1])
            assert found.half_width == pytest.approx(NORMAL_95 * forecast[epoch - 1])
            # Four times as many users, of whom as many report: four times the error.
            silent = aggregator.estimate(epoch, Attendance.constant(EPOCHS, 1_600))
            assert silent is not None
            assert silent.standard_deviation == pytest.approx(4 * forecast[epoch - 1])

    def test_an_epoch_without_reports_keeps_the_estimates(self) -> None:
        items = np.full((EPOCHS, self.USERS), 2)
        present = np.full(EPOCHS, self.EVERYBODY)
        present[[0, 2]] = 0
        states = states_of_means(items, present)
        # Those who came at the second epoch only.
        states[1:] = states_of_means(items[1:], present[1:])
        aggregator = aggregator_of(states)
        attendance = Attendance.constant(EPOCHS, self.EVERYBODY)
        found = [aggregator.estimate(epoch, attendance) for epoch in range(1, EPOCHS + 1)]
        assert found[0] is None
        second, third, fourth = found[1], found[2], found[3]
        assert second
        assert third
        assert fourth
        assert (second.flags, third.flags, fourth.flags) == ((), (GAP,), ())
        assert third.values.tolist() == second.values.tolist()
        assert (second.reports, third.reports) == (self.EVERYBODY, 0)
        # What their devices still add for the change is known by then to be less.
        assert fourth.values == pytest.approx([0, self.EVERYBODY, 0, 0, 0], abs=1e4)

    def test_later_letters_add_nothing(self) -> None:
        present = np.full(EPOCHS, self.EVERYBODY)
        present[[0, 5]] = 0
        aggregator = aggregator_of(states_of_means(self.items(), present))
        attendance = Attendance.constant(EPOCHS, self.EVERYBODY)
        smoothed = aggregator.smoothed(EPOCHS, attendance)
        assert smoothed.gaps.nonzero()[0].tolist() == [0, 5]
        assert smoothed.shrunk is smoothed.online_shrunk is None
        for epoch in range(2, EPOCHS + 1):
            found = aggregator.estimate(epoch, attendance)
            assert found is not None
            assert smoothed.values[epoch - 1].tolist() == found.values.tolist()
            assert smoothed.half_widths[epoch - 1] == found.half_width

    def test_what_comes_late_is_counted(self) -> None:
        """Whatever was estimated before."""
        states = states_of_means(self.items(), np.full(EPOCHS, self.EVERYBODY))
        attendance = Attendance.constant(EPOCHS, self.EVERYBODY)
        whole, parts = aggregator_of(states), aggregator_of([*states[:2], 0 * states[2]])
        before = parts.estimate(3, attendance)
        parts.merge(aggregator_of([0 * states[0], 0 * states[1], states[2]]))
        after, expected = parts.estimate(3, attendance), whole.estimate(3, attendance)
        assert before
        assert after
        assert expected
        assert after.values.tolist() == expected.values.tolist() != before.values.tolist()
        earlier, first = parts.estimate(1, attendance), whole.estimate(1, attendance)
        assert earlier
        assert first
        assert earlier.values.tolist() == first.values.tolist()


def test_rows_add_to_the_errors_of_items_that_others_hold() -> None:
    """Of a single epoch and a large epsilon: there they matter more than letters."""
    labels = tuple(map(str, range(ITEMS)))
    law = calibrate(HadamardValuesParameters(4.0, 0, labels), last_epoch=1)
    runs, users = 400, 300
    attendance, values = Attendance.constant(1, users), np.full(users, 1)
    errors = np.empty((runs, ITEMS))
    for run in range(runs):
        rng, devices = seeded_generator(5, run), HadamardValues(law)
        aggregator = HadamardValuesAggregator(law)
        devices.enrol(users, rng)
        aggregator.add(1, devices.report(1, values, None, rng), None)
        found = aggregator.estimate(1, attendance)
        assert found is not None
        errors[run] = found.values - [users, 0, 0, 0, 0]
    expected = HadamardValuesForecast(law, 1).standard_deviations(users)[0] ** 2
    # Nearly independent: means of 1,600 and of 400 squares, 6 and 5 standard deviations from these.
    assert np.square(errors[:, 1:]).mean() == pytest.approx(expected, rel=0.22)
    assert np.square(errors[:, 0]).mean() == pytest.approx(expected - users, rel=0.42)
    assert (np.abs(errors.mean(axis=0)) * math.sqrt(runs) < 7 * math.sqrt(expected)).all()


class TestNumbers:
    LAW = range_calibrate(RangeValuesParameters(4.0, 2, 0, 80, 8), EPOCHS)

    def test_nothing_is_known_before_the_finest_level_is(self) -> None:
        aggregator = RangeValuesAggregator(self.LAW)
        attendance = Attendance.constant(EPOCHS, 10)
        assert aggregator.estimate(1, attendance) is None
        aggregator.add(1, words((0, 90)) + np.uint32(2 << LEVEL_SHIFT), None)
        assert aggregator.estimate(1, attendance) is None
        assert aggregator.smoothed(1, attendance).gaps.tolist() == [True]
        aggregator.add(2, words((0, 90)) + np.uint32(3 << LEVEL_SHIFT), None)
        found = aggregator.estimate(2, attendance)
        assert found is not None
        # The second level is left out: it had no report then.
        assert [math.isfinite(variance) for variance in found.level_variances] == [
            False,
            False,
            True,
        ]

    def test_real_letters_give_ranges_and_the_same_when_looked_back_at(self) -> None:
        rng, users = seeded_generator(6), 4_000
        devices, aggregator = RangeValues(self.LAW), RangeValuesAggregator(self.LAW)
        devices.enrol(users, rng)
        attendance = Attendance.constant(EPOCHS, users)
        values = np.repeat(np.arange(1, 9), users // 8)
        for epoch in range(1, EPOCHS + 1):
            values = np.where(values < 5, 5, values) if epoch == 8 else values
            aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
        before, after = (aggregator.estimate(epoch, attendance) for epoch in (7, EPOCHS))
        assert before
        assert after
        for found, below in ((before, users / 2), (after, 0)):
            half = found.range(0, 4)
            assert half.value is not None
            assert half.standard_deviation is not None
            assert abs(half.value - below) < 6 * half.standard_deviation < users / 3
        smoothed = aggregator.smoothed(EPOCHS, attendance)
        assert smoothed.values[-1] == pytest.approx(after.values)
        assert smoothed.shrunk is None
        state = aggregator.to_bytes()
        assert RangeValuesAggregator.from_bytes(self.LAW, state).to_bytes() == state
        with pytest.raises(ValueError, match="end within level 3"):
            RangeValuesAggregator.from_bytes(self.LAW, state[:-1])
        with pytest.raises(ValueError, match="3 levels take"):
            RangeValuesAggregator.from_bytes(self.LAW, state + b"0")
