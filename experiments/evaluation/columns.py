"""Estimates to compare with the ground truth of a run; nan where a protocol has no estimate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.forecasts import Forecast, SmoothedForecast
from dpstream.pipeline.results.smoothing import NAMES
from dpstream.pipeline.simulation.simulated_job import Simulation

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Estimates in users for all epochs, shape (epochs,) or (epochs, items); nan if missing.

    Attributes:
        low: Lower ends of the 95 % confidence intervals, in the shape of `values`.
    """

    values: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True)
class Column:
    """One kind of estimate.

    Attributes:
        predicted: Function that predicts the RMSE over all epochs from a job and its user count.
    """

    series: Callable[[Simulation], Series]
    predicted: Callable[[DeployedJob, int], float | None] = lambda job, users: None


def series_of(simulation: Simulation, name: str) -> Series:
    shape = simulation.ground_truth[1:].shape
    values, low, high = (np.full(shape, np.nan) for _ in range(3))
    for record, found in simulation.columns():
        if name in found:
            at = record.epoch - 1
            # Without items, an estimate is a scalar.
            values[at], low[at], high[at] = found[name].reshape(3, *shape[1:])
    return Series(values, low, high)


def predicted_online(job: DeployedJob, users: int) -> float | None:
    """Return the RMSE that `plan` predicts, or None for a protocol without a forecast."""
    forecast = _forecast(job)
    return None if forecast is None else _root_mean_square(forecast.standard_errors(users))


def predicted_smoothed(job: DeployedJob, users: int) -> float | None:
    """Return the predicted RMSE of smoothed estimates, or None without a prediction."""
    forecast = _forecast(job)
    if not isinstance(forecast, SmoothedForecast):
        return None
    return _root_mean_square(forecast.smoothed_standard_errors(users))


def messages_per_user(job: DeployedJob) -> float | None:
    """Return the mean number of messages per user and epoch that `plan` predicts."""
    forecast = _forecast(job)
    return None if forecast is None else float(np.mean(forecast.reports_per_user))


def _forecast(job: DeployedJob) -> Forecast | None:
    planning = job.protocol_entry.planning
    return (
        None if planning is None else planning.forecast(job.law, job.parameters, job.epochs.count)
    )


def _root_mean_square(deviations: Array) -> float:
    return float(np.sqrt(np.square(deviations).mean()))


ONLINE: Final = "online"
"""Column of the estimates as published."""

_PREDICTED = {ONLINE: predicted_online, "smoothed": predicted_smoothed}

COLUMNS: Mapping[str, Column] = {
    name: Column(partial(series_of, name=name), _PREDICTED.get(name, lambda job, users: None))
    for name in NAMES
}
