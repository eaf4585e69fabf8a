"""Errors in a job's estimates, predicted before there is any data.

A forecast predicts the error at each epoch; a simultaneous bound limits the errors at all epochs.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.protocols.forecasts import (
    CellForecast,
    DividedForecast,
    DyadicForecast,
    Forecast,
    ShareForecast,
)
from dpstream.pipeline.protocols.protocol import Law

EXCEEDED: Final = 0.05
"""Maximum probability that any estimate's error exceeds the bound."""

_PRECISION: Final = 1e-13
# Gaussian probabilities beyond this number of standard deviations are negligible.
_SCORE_OF_NOTHING: Final = 40.0


def forecast_of(job: Job, law: Law, shares: NDArray[np.float64] | None = None) -> Forecast:
    """Return the forecast of a job's protocol, optionally for given shares of users with each item.

    Raises `JobError` if the protocol has no forecast, or no forecast that uses item shares.
    """
    protocol = job.protocol_entry
    if protocol.planning is None:
        raise JobError(
            [
                Problem(
                    ("protocol",),
                    f"'plan' does not support {protocol.name}, which has no error forecast",
                )
            ]
        )
    forecast = protocol.planning.forecast(law, job.parameters, job.epochs.count)
    if job.shuffle.instances > 1 and isinstance(forecast, DividedForecast):
        forecast = forecast.among(job.shuffle.instances, sealed=job.sealed is not None)
    if shares is None:
        return forecast
    if not isinstance(forecast, CellForecast):
        message = f"protocol {protocol.name} does not count items in cells; omit the counts"
        raise JobError([Problem(("protocol",), message)])
    return forecast.like(shares)


def rmse_of(forecast: Forecast, users: int) -> float:
    return root_mean_square(forecast.standard_errors(users))


def root_mean_square(deviations: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.square(deviations).mean()))


def predicted_rmse(job: Job, users: int, share: float | None = None) -> float | None:
    """Return the expected RMSE, in users; None for a protocol without a forecast.

    `share` is the share of users with the value, if errors depend on it; None means the share in
    the job's parameters.
    """
    try:
        law = job.calibrate()
        forecast = forecast_of(job, law)
    except JobError:
        return None
    if share is not None and isinstance(forecast, ShareForecast):
        forecast = forecast.at_share(share)
    return rmse_of(forecast, users + job.added_by_all(law))


def depends_on_share(job: Job) -> bool:
    """Return whether expected errors depend on the share of users with the counted value."""
    try:
        return isinstance(forecast_of(job, job.calibrate()), ShareForecast)
    except JobError:
        return False


def rounded_horizon(job: Job, law: Law) -> int | None:
    """Return the horizon rounded up to a power of two if the protocol requires it, else None."""
    if job.protocol_entry.planning is None:
        return None
    forecast = forecast_of(job, law)
    return forecast.horizon if isinstance(forecast, DyadicForecast) else None


def rounding_note(epochs: int, horizon: int | None) -> str | None:
    """Return a note if `horizon`, after rounding, is longer than `epochs`, else None.

    >>> print(rounding_note(6, 8))
    a horizon of 6 epochs is rounded up to 8, the next power of two; it still ends after epoch 6
    """
    if horizon is None or horizon == epochs:
        return None
    return (
        f"a horizon of {epochs:,} epochs is rounded up to {horizon:,}, the next power of two; it "
        f"still ends after epoch {epochs:,}"
    )


def largest_error(deviations: NDArray[np.float64], exceeded: float = EXCEEDED) -> float:
    """Return the bound x at which P(|error_t| > x), summed over epochs t, is `exceeded`.

    Errors are Gaussian, with positive standard `deviations`, shape (epochs,). By the union bound,
    any error exceeds x with probability at most `exceeded`, however they depend on each other.

    >>> round(largest_error(np.ones(1)), 2), round(largest_error(np.ones(1000)), 2)
    (1.96, 4.06)
    """
    distinct, times = np.unique(deviations, return_counts=True)
    bound = float(distinct[-1]) * _two_sided(exceeded)
    # The sum is convex and decreasing, so Newton steps from below never overshoot.
    while True:
        scores = np.minimum(bound / distinct, _SCORE_OF_NOTHING)
        tails = np.array([math.erfc(score) for score in (scores / math.sqrt(2)).tolist()])
        slopes = np.exp(-np.square(scores) / 2) * math.sqrt(2 / math.pi) / distinct
        step = (float(times @ tails) - exceeded) / float(times @ slopes)
        bound += step
        if step <= _PRECISION * bound:
            return bound


def widening(epochs: int) -> float:
    """Return the width of simultaneous intervals relative to 95 % intervals, for Gaussian errors.

    Each error exceeds the wider interval with probability `EXCEEDED` / `epochs`. The probability
    that any error does so is therefore at most `EXCEEDED`, however the errors depend on each other.
    `epochs` includes future epochs, so the ratio is known before epoch 1.

    >>> round(widening(1), 6), round(widening(170), 3)
    (1.0, 1.847)
    """
    return _two_sided(EXCEEDED / epochs) / NORMAL_95


def _two_sided(probability: float) -> float:
    return -NormalDist().inv_cdf(probability / 2)
