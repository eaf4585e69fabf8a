"""What all epochs keep to at once: a union bound, and how often runs of devices exceed it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpstream.aggregators.attendance import Attendance
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.pipeline.planning.largest_error import EXCEEDED, largest_error, widening
from dpstream.pipeline.protocols.future_rand import FutureRandForecast
from dpstream.randomizers.future_rand import FutureRand, FutureRandLaw, FutureRandParameters
from dpstream.randomizers.future_rand.calibration import calibrate
from dpstream.randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-9
USERS, EPOCHS, RUNS = 500, 16, 200


@pytest.mark.parametrize(
    "deviations",
    [[3.0], [2.0] * 50, [1.0, 5.0, 2.0], [1e-9, 1.0], [1e-300, 1.0], [1.0 + n for n in range(999)]],
)
def test_probabilities_of_all_epochs_add_up_to_what_is_allowed(deviations: list[float]) -> None:
    bound = largest_error(np.array(deviations), 0.01)
    assert sum(2 * stats.norm.sf(bound / each) for each in deviations) == pytest.approx(
        0.01, rel=1e-11
    )


@pytest.mark.parametrize("epochs", [1, 2, 170, 10**6])
def test_the_wider_interval_leaves_each_epoch_its_share(epochs: int) -> None:
    wider = widening(epochs) * float(stats.norm.isf(0.025))
    assert 2 * stats.norm.sf(wider) * epochs == pytest.approx(EXCEEDED, rel=1e-11)


def test_runs_exceed_it_as_seldom_as_it_says_and_would_not_with_less() -> None:
    law = calibrate(FutureRandParameters(1.0, 1), EPOCHS)
    bound = largest_error(FutureRandForecast(law, EPOCHS).standard_deviations(USERS))
    worst = np.array([worst_error_of_run(law, run) for run in range(RUNS)])
    exceeded = int(np.count_nonzero(worst > bound))
    assert stats.binom.sf(exceeded - 1, RUNS, EXCEEDED) > FALSE_ALARM
    # Three quarters of it are exceeded too often: it is not far above what is needed.
    too_often = int(np.count_nonzero(worst > 0.75 * bound))
    assert stats.binom.sf(too_often - 1, RUNS, EXCEEDED) < FALSE_ALARM


def worst_error_of_run(law: FutureRandLaw, run: int) -> float:
    devices, rng = FutureRand(law), seeded_generator(120, run)
    devices.enrol(USERS, rng)
    aggregator, attendance = FutureRandAggregator(law), Attendance.constant(EPOCHS, USERS)
    errors = []
    for epoch in range(1, EPOCHS + 1):
        values = np.full(USERS, epoch > 4, np.int8)
        aggregator.add(epoch, devices.report(epoch, values, None, rng), None)
        estimate = aggregator.estimate(epoch, attendance)
        assert estimate is not None
        assert estimate.value is not None
        errors.append(abs(estimate.value - int(values.sum())))
    return float(max(errors))


def test_the_theorem_is_as_in_the_paper_and_larger() -> None:
    law = calibrate(FutureRandParameters(1.0, 4), 170)
    forecast = FutureRandForecast(law, 170)
    expected = 9 / 0.20962 * math.sqrt(2 * 28_785 * math.log(2 * 256 / EXCEEDED))
    assert forecast.published_bound(28_785, EXCEEDED) == pytest.approx(expected, rel=1e-4)
    assert largest_error(forecast.standard_deviations(28_785)) < 0.4 * expected
