"""Intervals hold the truth as often as they say: at every epoch, over 2,000 trials.

At large epsilon they hold it a little more often: signs of one device then vary together, and where
its value goes up and down again the errors cancel. The server cannot see that, and allows for more.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.randomizers.future_rand import FutureRand, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

TRIALS = 2_000
HORIZON = 64
DEVICES = 2_000
CHANGES = 4


@pytest.mark.parametrize(
    ("epsilon", "silent", "most"), [(1.0, 0.0, 0.955), (1.0, 0.3, 0.955), (4.0, 0.0, 0.96)]
)
def test_intervals_hold_the_truth(epsilon: float, silent: float, most: float) -> None:
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        trials = list(pool.map(partial(trial, epsilon, silent), range(TRIALS), chunksize=50))
    errors, deviations = np.array(trials).transpose(1, 2, 0)
    covered = (np.abs(errors) <= NORMAL_95 * deviations).mean(axis=1)
    bias = errors.mean(axis=1) / (errors.std(axis=1) / math.sqrt(TRIALS))
    print_table(
        f"95 % intervals that hold the truth: {TRIALS:,} trials, epsilon {epsilon:g}, "
        f"{silent:.0%} of {DEVICES:,} devices silent",
        ["epoch", "coverage", "mean error", "mean standard deviation"],
        [
            [
                str(epoch),
                f"{covered[epoch - 1]:.1%}",
                f"{errors[epoch - 1].mean():+.1f}",
                f"{deviations[epoch - 1].mean():.1f}",
            ]
            for epoch in (1, 2, 3, 16, 31, 32, 63, 64)
        ]
        + [["mean", f"{covered.mean():.2%}", f"{errors.mean():+.1f}", f"{deviations.mean():.1f}"]],
    )
    assert covered.min() >= 0.92
    assert covered.max() <= 0.98
    assert 0.945 <= covered.mean() <= most
    assert np.abs(bias).max() < 6.5
    # Half of the noise, or twice as much, would be noticed.
    for scale in (0.5, 2.0):
        scaled = (scale * np.abs(errors) <= NORMAL_95 * deviations).mean()
        assert not 0.945 <= scaled <= most


def trial(epsilon: float, silent: float, seed: int) -> NDArray[np.float64]:
    """Errors and standard deviations, shape (2, epochs)."""
    law = calibrate(FutureRandParameters(epsilon, CHANGES), HORIZON)
    rng = np.random.default_rng(seed)
    flips = np.zeros((HORIZON + 1, DEVICES), np.int8)
    for _ in range(CHANGES):
        flips[rng.integers(1, HORIZON + 1, DEVICES), np.arange(DEVICES)] ^= 1
    streams = np.bitwise_xor.accumulate(flips, axis=0)
    present = rng.random(streams.shape) >= silent
    devices, aggregator = FutureRand(law), FutureRandAggregator(law)
    devices.enrol(DEVICES, seeded_generator(seed))
    random, attendance = seeded_generator(seed, 1), Attendance.constant(HORIZON, DEVICES)
    result = np.empty((2, HORIZON))
    for epoch in range(1, HORIZON + 1):
        aggregator.add(epoch, devices.report(epoch, streams[epoch], present[epoch], random), None)
        estimate = aggregator.estimate(epoch, attendance)
        assert estimate.value is not None
        assert estimate.standard_deviation is not None
        result[:, epoch - 1] = (
            estimate.value - int(streams[epoch].sum()),
            estimate.standard_deviation,
        )
    return result
