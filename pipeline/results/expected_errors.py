"""What a job's forecast says of the error of its estimates, before there are any."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.protocols.forecasts import (
    CellForecast,
    DividedForecast,
    DyadicForecast,
    Forecast,
)
from dpstream.pipeline.protocols.protocol import Law


def forecast_of(job: Job, law: Law, held: NDArray[np.float64] | None = None) -> Forecast:
    """The forecast of a job's protocol.

    Args:
        job: any job.
        law: of the job.
        held: the shares of users that hold each item, for protocols that count in cells.

    Raises:
        JobError: the protocol has no forecast, or none for shares of items.
    """
    protocol = job.protocol_entry
    if protocol.forecast is None:
        raise JobError([Problem(("protocol",), f"{protocol.name} has no forecast to plan with")])
    forecast = protocol.forecast(law, job.parameters, job.epochs.count)
    if job.instances > 1 and isinstance(forecast, DividedForecast):
        forecast = forecast.among(job.instances, sealed=job.sealed is not None)
    if held is None:
        return forecast
    if not isinstance(forecast, CellForecast):
        message = f"{protocol.name} does not count items in cells: leave their counts out"
        raise JobError([Problem(("protocol",), message)])
    return forecast.like(held)


def rmse_of(forecast: Forecast, users: int) -> float:
    """The root mean squared error over all epochs, in users."""
    return root_mean_square(forecast.standard_deviations(users))


def root_mean_square(deviations: NDArray[np.float64]) -> float:
    """The square root of the mean of squares."""
    return math.sqrt(float(np.square(deviations).mean()))


def predicted_rmse(job: Job, users: int) -> float | None:
    """The root mean squared error to expect, in users; None for a protocol without a forecast."""
    try:
        law = job.calibrate()
        return rmse_of(forecast_of(job, law), users + job.added_by_all(law))
    except JobError:
        return None


def rounded_horizon(job: Job, law: Law) -> int | None:
    """The epochs of a horizon rounded up to a power of two, where the protocol needs that."""
    if job.protocol_entry.forecast is None:
        return None
    forecast = forecast_of(job, law)
    return forecast.horizon if isinstance(forecast, DyadicForecast) else None


def rounding_note(epochs: int, horizon: int | None) -> str | None:
    """What to say of a horizon that is longer than its epochs; None if it is not.

    >>> print(rounding_note(6, 8))
    a horizon of 6 epochs is rounded up to 8, the next power of two; it ends after 6 all the same
    """
    if horizon is None or horizon == epochs:
        return None
    return (
        f"a horizon of {epochs:,} epochs is rounded up to {horizon:,}, the next power of two; it "
        f"ends after {epochs:,} all the same"
    )
