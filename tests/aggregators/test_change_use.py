"""Test lower bounds on the changes used: valid, and tight enough to warn in time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpstream.aggregators.change_use import ChangeUse, band
from dpstream.aggregators.estimate import CHANGES_USED, Participation
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters
from dpstream.randomizers.value_stream.calibration import calibrate
from dpstream.randomizers.value_stream.lattice import FIRST, LAST, STEP, ZERO
from dpstream.randomizers.value_stream.tilt import reach

EPOCHS, CHANGES, DEVICES = 40, 4, 2_000
LAW = calibrate(ValueStreamParameters(4.0, CHANGES), EPOCHS)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50), st.floats(-1, 1)), max_size=30),
)
def test_lower_bound_on_changes_never_exceeds_the_true_number(
    epochs: list[tuple[float, float, float]],
) -> None:
    use, ground_truth, moved = ChangeUse(), 0.0, 0.0
    for count, deviation, error in epochs:
        moved, ground_truth = moved + abs(count - ground_truth) / 100, count
        estimate = count + error * band(EPOCHS) * deviation
        use = use.after_count(estimate, deviation, 100, EPOCHS)
        assert use.moved <= moved + 1e-9


@pytest.mark.parametrize("change", [0.5, 3.0])
def test_changes_raise_the_mean_square_of_symbols_as_predicted(change: float) -> None:
    words = np.arange(FIRST, LAST + 1)
    symbols = (words - ZERO) * STEP
    base = np.exp(-np.square(symbols) / 2)
    base /= base.sum()
    left = np.full(len(symbols), LAW.squared_norm_budget - change**2)
    tilt = reach(np.asarray(change * symbols, np.float64), left, LAW.goal) / LAW.beginning
    noise = LAW.probability_of_noise
    excess = float(base @ (np.square(symbols) * (noise + (1 - noise) * tilt))) - 1
    assert excess == pytest.approx(
        LAW.theta * LAW.gain / LAW.squared_norm_budget * change**2, rel=2e-3
    )


def test_noise_is_rarely_mistaken_for_changes() -> None:
    rng, unit, reports = np.random.default_rng(5), 0.01, 50
    false = 0
    for _ in range(3_000):
        use = ChangeUse()
        for epoch, square in enumerate(rng.chisquare(reports, EPOCHS) / reports, 1):
            use = use.after_squares(square - 1 + unit / 4, reports, epoch, EPOCHS, unit, change=5.0)
        false += use.changes > 0
    # If each of 3,000 jobs has a probability of 1 in 1,000, 12 or more are practically impossible.
    assert false < 12


def flagged(law: ValueStreamLaw, values: NDArray[np.int8], seed: int) -> int | None:
    """Return the first flagged epoch of devices with values of shape (epochs, devices), if any."""
    rng = seeded_generator(seed)
    devices = ValueStream(law)
    devices.enroll(values.shape[1], rng)
    aggregator = ValueStreamAggregator(law)
    participation = Participation.constant(law.last_epoch, values.shape[1])
    for epoch, present in enumerate(values, 1):
        aggregator.add(epoch, devices.report(epoch, present, None, rng), None)
        estimate = aggregator.estimate(epoch, participation)
        assert estimate is not None
        if CHANGES_USED in estimate.flags:
            return epoch
    return None


def with_changes(changes: int, devices: int, epochs: int = EPOCHS) -> NDArray[np.int8]:
    """Draw streams with `changes` changes each at independent epochs: the counts barely move."""
    rng = np.random.default_rng(changes)
    at = np.argsort(rng.random((devices, epochs - 8)), axis=1)[:, :changes] + 1
    made = np.zeros((epochs + 1, devices), np.int64)
    np.add.at(made, (at, np.arange(devices)[:, None]), 1)
    return (np.cumsum(made, axis=0)[1:] % 2).astype(np.int8)


def wave(devices: int) -> NDArray[np.int8]:
    thresholds = (np.arange(devices) + 0.5) / devices
    level = 0.4 - 0.4 * np.cos(2 * math.pi * np.arange(1, EPOCHS + 1) / 12)
    return (thresholds < level[:, None]).astype(np.int8)


@pytest.mark.parametrize(
    "values",
    [with_changes(1, DEVICES), with_changes(CHANGES // 2, DEVICES), wave(DEVICES)[:12]],
    ids=["few", "nearly half", "one wave"],
)
def test_no_warning_is_given_below_half_of_max_changes(values: NDArray[np.int8]) -> None:
    if len(values) == EPOCHS:
        # The last device makes no change: the mean stays below one half.
        values[:, -1] = 0
    assert [flagged(LAW, values, seed) for seed in range(25)] == [None] * 25


@pytest.mark.parametrize(
    ("values", "least"), [(with_changes(CHANGES, 20_000), 1), (wave(DEVICES), 12)]
)
def test_exhaustion_of_most_devices_causes_a_warning(values: NDArray[np.int8], least: int) -> None:
    changed = np.cumsum(np.diff(values, axis=0, prepend=0) != 0, axis=0)
    used_up = int(np.argmax((changed >= CHANGES).mean(axis=1) > 0.5)) + 1
    for seed in range(5):
        warned = flagged(LAW, values, seed)
        assert warned is not None
        assert least <= warned <= used_up + 2
