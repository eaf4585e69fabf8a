"""What a job promises and what to expect of it, before it is deployed and before any data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.forecasts import Forecast
from pipeline.job_problems import JobError, Problem
from pipeline.jobs import Job
from randomizers.guarantee import Guarantee

DEFAULT_USERS = 10_000

# Root mean squared errors, as shares of the users, that `Plan.users_needed` is given for.
WANTED_ERRORS = (0.1, 0.05, 0.02, 0.01)
_MOST_USERS = 2**50


@dataclass(frozen=True, slots=True)
class ExpectedEpoch:
    """One epoch: standard deviation of its estimate, in users, and reports in its window."""

    epoch: int
    standard_deviation: float
    reports: float


@dataclass(frozen=True, slots=True)
class UsersNeeded:
    """How many users bring the root mean squared error down to a share of them; None: no number."""

    error: float
    users: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to expect of a job.

    Attributes:
        job: the job's name.
        protocol: its protocol.
        guarantee: what it promises every user.
        users: the number of users that the expectations are for, all of them reporting always.
        rmse: expected root mean squared error over all epochs, in users.
        epochs: expectations for every epoch.
        reports_per_user: expected number of reports a device sends over all epochs.
        bytes_per_user: expected size of these reports, without what frames and batches add.
        users_needed: for a wanted error.
        constants: the protocol's calibrated constants, as rows of a table.
        caveats: what the figures leave out.
    """

    job: str
    protocol: str
    guarantee: Guarantee
    users: int
    rmse: float
    epochs: tuple[ExpectedEpoch, ...]
    reports_per_user: float
    bytes_per_user: float
    users_needed: tuple[UsersNeeded, ...]
    constants: tuple[dict[str, int | float], ...]
    caveats: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)


def plan(job: Job, users: int = DEFAULT_USERS) -> Plan:
    """Calibrate a job and say what to expect.

    Args:
        job: any job.
        users: how many users, all of them reporting at every epoch.

    Raises:
        JobError: no constants exist for the job's parameters and horizon, or its protocol
            has no forecast.
        ValueError: there is not one user.

    >>> from pipeline.jobs import parse_job
    >>> expected = plan(parse_job('''
    ... name: weeks
    ... protocol: future_rand
    ... parameters: {epsilon: 1, changes: 4}
    ... epochs: {count: 256}
    ... '''))
    >>> round(expected.rmse / 100, 1), expected.guarantee.unit
    (27.7, 'stream')
    """
    if users < 1:
        raise ValueError(f"{users} users: give a number from 1 on")
    protocol = job.protocol_entry
    if protocol.forecast is None:
        raise JobError([Problem(("protocol",), f"{protocol.name} has no forecast to plan with")])
    law = job.calibrate()
    forecast = protocol.forecast(law, job.last_epoch)
    deviations = forecast.standard_deviations(users).tolist()
    reports = (forecast.reports_per_user * users).tolist()
    reports_per_user = float(forecast.reports_per_user.sum())
    return Plan(
        job=job.name,
        protocol=protocol.name,
        guarantee=protocol.randomizer(law).guarantee,
        users=users,
        rmse=_rmse(forecast, users),
        epochs=tuple(map(ExpectedEpoch, range(1, job.last_epoch + 1), deviations, reports)),
        reports_per_user=reports_per_user,
        bytes_per_user=reports_per_user * protocol.width * protocol.word_dtype.itemsize,
        users_needed=tuple(
            UsersNeeded(error, users_needed(forecast, error)) for error in WANTED_ERRORS
        ),
        constants=tuple(dict(row) for row in forecast.constants),
        caveats=forecast.caveats,
    )


def users_needed(forecast: Forecast, error: float) -> int | None:
    """The fewest users whose estimates have a root mean squared error of at most a share of them.

    Args:
        forecast: of the job's law.
        error: the wanted error divided by the number of users, above 0.

    Returns:
        None if no number of users up to 2^50 suffices.
    """

    def suffice(users: int) -> bool:
        return _rmse(forecast, users) <= error * users

    if not suffice(_MOST_USERS):
        return None
    too_few, enough = 0, _MOST_USERS
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if suffice(middle) else (middle, enough)
    return enough


def _rmse(forecast: Forecast, users: int) -> float:
    return math.sqrt(float(np.square(forecast.standard_deviations(users)).mean()))
