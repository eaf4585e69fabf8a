"""Published estimates are unbiased and have the stated errors.

Devices and aggregator run often enough that tests with a false-alarm rate of 1e-12 reject errors
scaled by 0.7 or 1.3, or shifted by half a standard deviation.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpstream.aggregators.estimate import Estimate, Participation, Published
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.aggregators.range_estimates import OrderedEstimates
from dpstream.pipeline.protocols.forecasts import Forecast
from dpstream.pipeline.protocols.panels import PanelsForecast
from dpstream.randomizers.counted_messages import written_out
from tests.conformance.cases import FALSE_ALARM, Case, Values, every_estimated_case

pytestmark = pytest.mark.slow

RUNS = 800
DEVICES = 600
# Fraction of users who change; all others keep the initial value. Predictions are made without
# knowing the values, so their variance is off by up to this fraction.
CHANGING = 4
TOLERANCE = 0.05
# One row distinguishes two buckets, but the allowance for several rows applies anyway. Buckets of
# sampled_response with few users are more accurate than planned. How much of a mean's error comes
# from thresholds depends on the numbers; the largest possible part is published. Errors of
# panels are planned for half of the users with yes.
CAUTIOUS = ("range_values-1", "sampled_response-6", "panels-0", "panels-1", "sampled_panels-0")
NEWCOMERS = 10_000
NEWCOMERS_RUNS = 8


@every_estimated_case
def test_estimates_are_unbiased(case: Case) -> None:
    standardized, _ = errors(case)
    assert (likelihood_of_mean(standardized) > FALSE_ALARM).all()
    assert (likelihood_of_mean(standardized + 0.5) < FALSE_ALARM).all()
    assert (likelihood_of_mean(standardized - 0.5) < FALSE_ALARM).all()


@every_estimated_case
@pytest.mark.parametrize("prediction", ["published", "planned"])
def test_errors_match_predictions(case: Case, prediction: str) -> None:
    """Covers the published standard errors of estimates, and the errors planned before any data."""
    published, planned = errors(case)
    standardized = published if prediction == "published" else planned
    for scale in (1.0, 0.7) if str(case) in CAUTIOUS else (1.0, 0.7, 1.3):
        as_predicted = likelihood_of_squares(scale * standardized) > FALSE_ALARM
        assert (as_predicted == (scale == 1.0)).all(), scale


@every_estimated_case
def test_estimates_with_late_enrollment_are_unbiased(case: Case) -> None:
    """Half of the devices enroll at the second epoch with another value, and 30 % are absent."""
    if case.last_epoch == 1:
        return
    standardized = np.concatenate([newcomers_errors(case, run) for run in range(NEWCOMERS_RUNS)])
    standardized = standardized.reshape(NEWCOMERS_RUNS, -1)
    assert (likelihood_of_mean(standardized) > FALSE_ALARM).all()
    assert (likelihood_of_mean(standardized + 4.0) < FALSE_ALARM).all()
    assert (likelihood_of_mean(standardized - 4.0) < FALSE_ALARM).all()


def newcomers_errors(case: Case, run: int) -> NDArray[np.float64]:
    """Return errors divided by published standard errors, from the second epoch on."""
    devices, aggregator = case.protocol.randomizer(case.law), case.aggregator()
    participation, rng = Participation.empty(case.last_epoch), case.generator(31, run)
    indices = np.full((case.last_epoch, 2 * NEWCOMERS), case.domain.initial)
    indices[:, NEWCOMERS:] = len(case.values) - 1
    values = case.array_of(indices)
    found = []
    for epoch, now in enumerate(values, start=1):
        if epoch <= 2:
            devices.enroll(NEWCOMERS, rng)
        now = now[: devices.population]
        present = rng.random(len(now)) < 0.7
        reports = written_out(devices.report(epoch, now, present, rng))
        aggregator.add(epoch, case.released([reports], rng)[0], None)
        participation.set(epoch, int(present.sum()), len(now))
        estimate = aggregator.estimate(epoch, participation)
        assert estimate is not None
        count = values_of(estimate)
        if epoch > 1:
            error = count - case.ground_truth(now[None])[0]
            found.append(error / standard_errors_of(estimate))
    return np.concatenate(found)


@cache
def errors(case: Case) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return errors divided by published and by planned standard errors, shape (runs, counts)."""
    values = followed_values(case)
    participation = Participation.constant(case.last_epoch, DEVICES)
    ground_truth = case.ground_truth(values)
    deviations = np.empty((RUNS, *ground_truth.shape))
    published = np.empty((RUNS, *ground_truth.shape))
    for run in range(RUNS):
        aggregator = case.aggregator()
        sent = case.send(values, case.generator(30, run))
        for epoch, words in enumerate(case.released(sent, case.generator(32, run)), start=1):
            aggregator.add(epoch, words, None)
            estimate = aggregator.estimate(epoch, participation)
            assert estimate is not None
            found = values_of(estimate)
            deviations[run, epoch - 1] = found - ground_truth[epoch - 1]
            published[run, epoch - 1] = standard_errors_of(estimate)
    assert case.protocol.planning is not None
    forecast = case.protocol.planning.forecast(case.law, case.parameters, case.last_epoch)
    planned = planned_errors(case, forecast)
    standardized = deviations / published, deviations / planned
    return standardized[0].reshape(RUNS, -1), standardized[1].reshape(RUNS, -1)


def planned_errors(case: Case, forecast: Forecast) -> NDArray[np.float64]:
    if not isinstance(forecast, PanelsForecast):
        return forecast.standard_errors(DEVICES)[:, None]
    units = [
        DEVICES / question.span if question.low is not None else 1.0
        for question in case.parameters.questions
    ]
    rows = [row.question for row in case.parameters.rows]
    return (forecast.question_errors(DEVICES) / units)[:, rows]


def values_of(estimate: Published) -> NDArray[np.float64]:
    if isinstance(estimate, Estimate):
        return np.array([estimate.value], np.float64)
    values: NDArray[np.float64] = estimate.intervals[0]
    return values


def standard_errors_of(estimate: Published) -> NDArray[np.float64]:
    """Return the standard error of each count: for most protocols, the same for all."""
    if isinstance(estimate, PanelEstimates):
        return estimate.standard_errors
    if not isinstance(estimate, OrderedEstimates):
        return np.array([estimate.standard_error], np.float64)
    ends = np.arange(len(estimate.values) + 1)
    return np.sqrt(estimate.variances(ends[:-1], ends[1:]))


def followed_values(case: Case) -> Values:
    """Return values, shape (epochs, devices), of all streams with unbiased estimates."""
    streams = [stream for stream in case.streams if case.exact.followed(stream)]
    changing = DEVICES // CHANGING
    values = case.array_of(np.full((case.last_epoch, DEVICES), case.domain.initial))
    followed = np.array(streams, case.dtype)
    values[:, :changing] = np.swapaxes(followed[np.arange(changing) % len(followed)], 0, 1)
    return values


def likelihood_of_mean(standardized: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the p-value of the mean of each column, for mean 0."""
    likelihood: NDArray[np.float64] = 2 * stats.norm.sf(
        np.abs(standardized.mean(axis=0)) * math.sqrt(len(standardized))
    )
    return likelihood


def likelihood_of_squares(standardized: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the p-value of the variance of each column, for variance 1 within the tolerance."""
    squares = np.square(standardized).sum(axis=0)
    below = stats.chi2.cdf(squares / (1 - TOLERANCE), len(standardized))
    above = stats.chi2.sf(squares / (1 + TOLERANCE), len(standardized))
    likelihood: NDArray[np.float64] = 2 * np.minimum(below, above)
    return likelihood
