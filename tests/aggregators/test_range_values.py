"""Test server-side values over time: combined levels, missing reports, and rejections."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.range_estimates import RangeEstimates
from dpstream.aggregators.range_values import RangeValuesAggregator
from dpstream.pipeline.protocols.range_values import RangeValuesForecast
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.value_stream.range_values import (
    LEVEL_SHIFT,
    RangeValues,
    RangeValuesParameters,
)
from dpstream.randomizers.value_stream.range_values.calibration import calibrate

PARAMETERS = RangeValuesParameters(2.0, 2, low=0, high=16, buckets=16)
EPOCHS = 4
LAW = calibrate(PARAMETERS, EPOCHS)
FALSE_ALARM = 1e-12

Values = NDArray[np.int64]


def moving_values(users: int) -> Values:
    start = 1 + np.arange(users) % 11
    return np.array([start, start, start + 2, start + 5])


def run(
    values: Values, seed: int, present: Callable[[int], NDArray[np.bool_]] | None = None
) -> list[RangeEstimates]:
    rng = seeded_generator(seed)
    devices, aggregator = RangeValues(LAW), RangeValuesAggregator(LAW)
    devices.enroll(values.shape[1], rng)
    participation = Participation.constant(EPOCHS, values.shape[1])
    found = []
    for epoch, now in enumerate(values, start=1):
        here = None if present is None else present(epoch)
        aggregator.add(epoch, devices.report(epoch, now, here, rng), None)
        found.append(known(aggregator.estimate(epoch, participation)))
    return found


def known(estimate: RangeEstimates | None) -> RangeEstimates:
    assert estimate is not None
    return estimate


@pytest.mark.verify
@pytest.mark.parametrize("absent", [0.0, 0.3])
def test_ranges_are_unbiased_with_the_stated_standard_error(absent: float) -> None:
    values, runs = moving_values(1_000), 1_500
    ground_truth = np.array([np.bincount(now, minlength=17)[1:] for now in values])
    ranges = [(0, 1), (3, 8), (0, 8), (5, 6), (2, 14), (8, 16)]
    standardized = np.empty((runs, EPOCHS, len(ranges)))
    deviations = np.empty_like(standardized)
    for number in range(runs):
        rng = seeded_generator(number, 5)
        found = run(
            values,
            number,
            (lambda epoch: rng.random(1_000) >= absent) if absent else None,  # noqa: B023
        )
        for epoch, estimate in enumerate(found):
            for index, (start, end) in enumerate(ranges):
                part = estimate.range(start, end)
                assert part.value is not None
                assert part.standard_error is not None
                error = part.value - ground_truth[epoch, start:end].sum()
                standardized[number, epoch, index] = error / part.standard_error
                deviations[number, epoch, index] = part.standard_error
    means = standardized.mean(axis=0) * math.sqrt(runs)
    assert (2 * stats.norm.sf(np.abs(means)) > FALSE_ALARM).all()
    squares = np.square(standardized).sum(axis=0)
    for scale in (1.0, 0.7, 1.3):
        # The variance of the values themselves is not included: up to a tenth.
        below = stats.chi2.cdf(squares * scale**2 / 0.9, runs)
        above = stats.chi2.sf(squares * scale**2 / 1.02, runs)
        as_said = 2 * np.minimum(below, above) > FALSE_ALARM
        assert (as_said == (scale == 1.0)).all(), scale
    if not absent:
        forecast = RangeValuesForecast(LAW, PARAMETERS, EPOCHS)
        planned = np.array([forecast.range_deviations(1_000, *ends) for ends in ranges]).T
        said = np.sqrt(np.square(deviations).mean(axis=0))
        assert said == pytest.approx(planned, rel=0.05)


def without(level: int, at: int) -> list[RangeEstimates]:
    values, rng = moving_values(3_000), seeded_generator(9)
    devices, aggregator = RangeValues(LAW), RangeValuesAggregator(LAW)
    devices.enroll(3_000, rng)
    participation = Participation.constant(EPOCHS, 3_000)
    found = []
    for epoch, now in enumerate(values, start=1):
        words = devices.report(epoch, now, None, rng)
        if epoch == at:
            words = words[words[:, 0] >> LEVEL_SHIFT != level]
        aggregator.add(epoch, words, None)
        found.append(known(aggregator.estimate(epoch, participation)))
    return found


def test_gap_at_an_upper_level_widens_range_intervals_but_sets_no_flag() -> None:
    whole, *_ = run(moving_values(3_000), seed=9)
    partly, *_ = without(level=2, at=1)
    assert partly.flags == ()
    assert math.isinf(partly.level_variances[1])
    wide = whole.range(0, 8).standard_error
    assert wide is not None
    without_it = partly.range(0, 8).standard_error
    assert without_it is not None
    assert without_it > wide
