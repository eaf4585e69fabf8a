"""Choice of the change budget (`max_changes`) that best fits the number of changes per user.

A larger budget adds noise to the estimates, and changes beyond the budget bias them. If the shares
of users with 0, 1, ... changes are known, both effects can be predicted
(`dpstream.aggregators.freezing`), and one budget has the smallest total error. The shares should
come from known or public data: shares computed from the users' own values are as sensitive as these
values, without any protection.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.freezing import LONGEST, FreezingModel
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.protocols.forecasts import Forecast, FreezingForecast
from dpstream.pipeline.whole_files import read_whole_text
from dpstream.randomizers.composed import MAX_SIGNS

# Every budget up to this one is tried. Larger budgets are tried in steps of 10 %.
_EVERY = 32
_SHARES_TOLERANCE = 0.001
_MOST_USERS = 2**53


@dataclass(frozen=True, slots=True)
class ChangesChoice:
    """Expected errors with a budget of `max_changes` changes per user.

    Attributes:
        noise: RMSE without exhausted users, in users.
        bias: Root mean square of the expected error from exhausted users, in users.
        rmse: RMSE from noise and bias together, in users.
        exhausted: Share of users with more changes than the budget allows.
        best: True if no other budget has a smaller `rmse`.
    """

    max_changes: int
    noise: float
    bias: float
    rmse: float
    exhausted: float
    best: bool = False


def read_changes_histogram(path: Path, last_epoch: int) -> NDArray[np.float64]:
    """Read shares of users by number of changes: CSV ``changes,share`` or ``changes,users``.

    Returns the shares of users with 0, 1, ... changes, shape (most + 1,), with sum 1. Raises
    `InputError` for more than `last_epoch` changes and for other invalid data.
    """
    try:
        lines = read_whole_text(path, "utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file in UTF-8"
        raise InputError(f"{path}: cannot read the histogram of changes: {reason}") from None
    header = [name.strip().casefold() for name in next(csv.reader(lines[:1]), [])]
    if header not in (["changes", "share"], ["changes", "users"]):
        raise InputError(
            f"{path}:1: expected column names changes,share or changes,users: a number of "
            "changes, and the share or number of users with that many changes"
        )
    amounts: dict[int, float] = {}
    for place, changes, amount in _rows(path, lines):
        if changes in amounts:
            raise InputError(f"{place}: duplicate row for {changes} changes; expected one row")
        if changes > last_epoch:
            raise InputError(
                f"{place}: {changes:,} changes do not fit in {last_epoch:,} epochs; expected at "
                "most one change per epoch"
            )
        amounts[changes] = amount
    total = math.fsum(amounts.values())
    if not total > 0:
        raise InputError(f"{path}: all rows have 0 users; expected the number or share of users")
    if header[1] == "share" and abs(total - 1) > _SHARES_TOLERANCE:
        raise InputError(
            f"{path}: the sum of shares is {total:g}; expected 1. If these are user counts, name "
            "the column users"
        )
    shares = np.zeros(max(amounts) + 1)
    shares[list(amounts)] = np.array(list(amounts.values())) / total
    return shares


def count_changes(change_log: ChangeLog, horizon: int) -> NDArray[np.float64]:
    """Return the shares of users by number of changes, as `read_changes_histogram` does.

    After `horizon` epochs, users start again from the initial value. A user counts once per
    horizon.
    """
    counts = np.zeros(horizon + 1)
    for first in range(1, change_log.last_epoch + 1, horizon):
        before = np.searchsorted(change_log.epochs, first, side="right")
        after = np.searchsorted(change_log.epochs, first + horizon - 1, side="right")
        later = np.bincount(change_log.user_indices[before:after], minlength=len(change_log.users))
        changes = later + (change_log.values_at(first) != change_log.initial)
        counts += np.bincount(changes, minlength=horizon + 1)
    shares: NDArray[np.float64] = np.trim_zeros(counts, "b") / counts.sum()
    return shares


def weigh_changes(job: Job, users: int, shares: NDArray[np.float64]) -> tuple[ChangesChoice, ...]:
    """Return expected errors for other change budgets, in ascending order.

    For the largest budget compared, no user is exhausted, or the noise alone exceeds the least
    RMSE. The job's own budget is always included. `shares` are indexed by number of changes. Raises
    `JobError` if the protocol has no change budget, or the horizon is too long.
    """
    last_epoch = job.epochs.count
    if last_epoch > LONGEST:
        raise JobError(
            [
                Problem(
                    ("epochs", "count"),
                    f"is {last_epoch:,}; expected at most {LONGEST:,} to compare change budgets",
                )
            ]
        )
    model = FreezingModel(shares, last_epoch)
    choices: list[ChangesChoice] = []
    least = math.inf
    present = getattr(job.parameters, "max_changes", None)
    for changes in budgets_to_try(len(shares) - 1, present):
        if least < math.inf and choices[-1].noise >= least and changes != present:
            continue
        choice = _choice(job, users, shares, model, changes)
        choices.append(choice)
        least = min(least, choice.rmse)
    return tuple(replace(choice, best=choice.rmse == least) for choice in choices)


def _choice(
    job: Job, users: int, shares: NDArray[np.float64], model: FreezingModel, changes: int
) -> ChangesChoice:
    forecast = _forecast(job, changes)
    bias = users * forecast.freezing_bias(model)
    variances = np.square(forecast.standard_errors(users))
    return ChangesChoice(
        max_changes=changes,
        noise=math.sqrt(float(variances.mean())),
        bias=math.sqrt(float(np.square(bias).mean())),
        rmse=math.sqrt(float((variances + np.square(bias)).mean())),
        exhausted=float(shares[changes + 1 :].sum()),
    )


def _forecast(job: Job, changes: int) -> FreezingForecast:
    protocol = job.protocol_entry
    if job.domain.items is not None:
        raise JobError(
            [
                Problem(
                    ("protocol",),
                    "a histogram of changes requires a protocol over values 0 and 1; "
                    f"{protocol.name} has other values. Remove the histogram",
                )
            ]
        )
    made: Forecast | None = None
    if protocol.planning is not None and hasattr(job.parameters, "max_changes"):
        parameters: Any = replace(job.parameters, max_changes=changes)
        law = protocol.calibrate(parameters, job.epochs.count, job.shuffle.minimum)
        made = protocol.planning.forecast(law, parameters, job.epochs.count)
    if not isinstance(made, FreezingForecast):
        raise JobError(
            [
                Problem(
                    ("protocol",),
                    f"{protocol.name} has no change budget to compare. Remove the histogram of "
                    "changes",
                )
            ]
        )
    return made


def budgets_to_try(most: int, present: int | None = None) -> list[int]:
    """Return the budgets to compare: some of at most `most` changes, and the present budget.

    Small budgets are consecutive; larger ones are even numbers, each about 10 % above the previous.

    >>> budgets_to_try(40)[-4:], budgets_to_try(2, present=7)
    ([31, 32, 36, 40], [1, 2, 7])
    """
    most = max(1, min(most, MAX_SIGNS))
    budgets = list(range(1, min(most, _EVERY) + 1))
    while budgets[-1] < most:
        budgets.append(min(most, 2 * round(budgets[-1] * 0.55)))
    return sorted({*budgets, *([] if present is None else [present])})


def _rows(path: Path, lines: list[str]) -> Iterator[tuple[str, int, float]]:
    for number, line in enumerate(lines[1:], 2):
        place = f"{path}:{number}"
        fields = [field.strip() for field in line.split(",")]
        if fields == [""]:
            continue
        try:
            changes, amount = int(fields[0]), float(fields[1])
        except (ValueError, IndexError):
            changes, amount = -1, -1.0
        if len(fields) != 2 or changes < 0 or not 0 <= amount <= _MOST_USERS:
            raise InputError(
                f"{place}: {line[:60]!r} is not a number of changes and a share or number of "
                "users; expected two numbers from 0 to 2^53, such as 3,0.25"
            )
        yield place, changes, amount
