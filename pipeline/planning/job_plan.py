"""Guarantee and expected accuracy of a job, before it is deployed and before any data exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, repeat
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.budgets import (
    BudgetError,
    Charge,
    check_budget,
    horizons_within_budget,
)
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.change_budgets import ChangesChoice, weigh_changes
from dpstream.pipeline.planning.crowd_sizes import CrowdsPlan, plan_crowds
from dpstream.pipeline.planning.group_errors import (
    MeasureErrors,
    cheaper_notes,
    hidden_notes,
    measure_errors,
    spare_notes,
)
from dpstream.pipeline.planning.outlook import (
    HonestContributors,
    Outlook,
    contributor_curve,
    outlook,
)
from dpstream.pipeline.planning.parties import PartyGuarantee, party_guarantees
from dpstream.pipeline.planning.poisoning import poisoning_bound
from dpstream.pipeline.planning.recommendation import (
    Compared,
    Recommendation,
    Trust,
    compare,
    recommend,
)
from dpstream.pipeline.planning.review import warnings_for
from dpstream.pipeline.protocols.forecasts import (
    BoundedForecast,
    CellForecast,
    DyadicForecast,
    Forecast,
    SearchedForecast,
    ShareForecast,
    SmoothedForecast,
)
from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.results.compared_protocols import (
    Alternative,
    alternatives,
    window_error,
)
from dpstream.pipeline.results.expected_errors import (
    EXCEEDED,
    forecast_of,
    largest_error,
    rmse_of,
    root_mean_square,
)
from dpstream.pipeline.values.numeric_values import SHARES
from dpstream.randomizers.division import room_of_part
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.search import least_integer
from dpstream.topics.sealed_messages import sealed_format

DEFAULT_USERS = 10_000

# Default target errors of `Plan.users_needed`, as shares of the users.
TARGET_ERRORS = (0.1, 0.05, 0.02, 0.01)

ANY_NUMBER = 2**50


@dataclass(frozen=True, slots=True)
class ExpectedEpoch:
    """Prediction for one epoch; standard errors are in users.

    Attributes:
        smoothed: Standard error of the smoothed estimate after the horizon; None without smoothing.
        begins: Start of the epoch; None without a calendar, or if the job is recurring.
    """

    epoch: int
    standard_error: float
    reports: float
    smoothed: float | None = None
    begins: str | None = None


@dataclass(frozen=True, slots=True)
class ExpectedWindow:
    """Predicted RMSE of means over windows of `epochs` epochs, in users; None if unknown."""

    epochs: int
    rmse: float | None


@dataclass(frozen=True, slots=True)
class UsersNeeded:
    """Minimum number of users for a target RMSE; None if no number of users achieves it."""

    error: float
    users: int | None


@dataclass(frozen=True, slots=True)
class FreshBudget:
    """Budget use of a job whose users were not charged before.

    `charged` is the epsilon of the job; if it recurs, of all `horizons` that fit the budget
    `epsilon`. With a `period` (ISO 8601 duration), only the horizons that can count within one such
    period are charged.
    """

    epsilon: float
    horizons: int
    charged: float
    period: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Prediction for a job in which all `users` always report. Errors and bounds are in users.

    Attributes:
        parties: Guarantee against each party that sees any of the job's data.
        budget: Budget use of the job; None without a budget that allows a horizon.
        contributors: Guarantees with fewer honest users; empty if not requested, or if the
            guarantee does not depend on honest users.
        alternatives: Predictions for the job and other protocols, if requested and there are any.
        comparison: Alternatives, and always the job itself, with local losses, bytes and CPU
            seconds; empty if not requested.
        crowds: Plan of the crowds, if any; the errors below then apply to one of several crowds of
            equal size.
        measures: Predicted errors of each measure, for all users and by size of group.
        cells: Description of the cells; None for protocols without cells.
        predicted_error: Mean absolute error for a rare item; None without cells.
        noise_error: Mean absolute error from the noise alone.
        rmse: Expected RMSE over all epochs.
        share: Share of users with the counted value for which errors are predicted; None if errors
            do not depend on this share.
        half_rmse, share_rmses: Expected RMSE for a value that half of the users have, or each share
            in `SHARES`; None or empty if `share` is None.
        smoothed_rmse: Expected RMSE of the smoothed estimates; None without smoothing.
        largest_error: Bound that no error at any epoch exceeds in 19 of 20 runs.
        published_bound: Such a bound by a theorem in the protocol's paper; None without a theorem.
        horizon: Number of epochs, rounded up to a power of two; None if rounding is not needed.
        reports_per_user: Expected number of reports per device over all epochs.
        bytes_per_user: Expected size of these reports, without the overhead of records and batches.
            Sealed reports include their ciphertexts and the cover traffic that hides the number of
            reports; with shares, one producer for all users is assumed.
        messages_per_user: Messages per `messages_unit`, limited by `parameters.messages_per_user`.
        messages_unit: "epoch" if epochs are independent, otherwise "horizon".
        users_needed: Users needed for target errors, at least the minimum for a window.
        most_users: Maximum number of users for a target error, if the error grows with the number
            of users; at least the minimum for a window.
        assumption: Text on the maximum changes per user that intervals assume, and on when a
            typical user reaches it; None if intervals hold for any stream.
        changes: Predictions for other change budgets, if shares by number of changes are given.
        poisoning_bound: Bound from `poisoning.py`, if requested and devices report for themselves.
        notes: Effects that the prediction omits.
        warnings: Obstacles to running and publishing this job, and to other jobs of these users.
    """

    job: str
    protocol: str
    guarantee: Guarantee
    parties: tuple[PartyGuarantee, ...]
    budget: FreshBudget | None
    minimum: int
    contributors: tuple[HonestContributors, ...]
    alternatives: tuple[Alternative, ...]
    comparison: tuple[Compared, ...]
    recommendation: Recommendation | None
    outlook: Outlook | None
    crowds: CrowdsPlan | None
    measures: tuple[MeasureErrors, ...]
    cells: str | None
    predicted_error: float | None
    noise_error: float | None
    users: int
    rmse: float
    share: float | None
    half_rmse: float | None
    share_rmses: tuple[float, ...]
    smoothed_rmse: float | None
    largest_error: float
    published_bound: float | None
    horizon: int | None
    epochs: tuple[ExpectedEpoch, ...]
    windows: tuple[ExpectedWindow, ...]
    reports_per_user: float
    bytes_per_user: float
    messages_per_user: float
    messages_unit: Literal["epoch", "horizon"]
    users_needed: tuple[UsersNeeded, ...]
    most_users: UsersNeeded | None
    assumption: str | None
    changes: tuple[ChangesChoice, ...]
    constants: tuple[dict[str, int | float], ...]
    poisoning_bound: float | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def plan(
    job: Job,
    users: int = DEFAULT_USERS,
    *,
    error: float | None = None,
    changes: NDArray[np.float64] | None = None,
    held: NDArray[np.float64] | None = None,
    compared: bool = False,
    side_by_side: bool = False,
    trust: Trust | None = None,
    colluding: float = 0.0,
    dropout: float = 0.0,
    by_size: Sequence[float] = (),
) -> Plan:
    """Calibrate a job and predict its guarantee and accuracy.

    Args:
        job: Job to plan.
        users: Number of users, all of whom report at every epoch.
        error: Target RMSE: below 1, a share of the users, otherwise a number of users.
        changes: Shares of users with 0, 1, ... changes in a horizon.
        held: Shares of users with each item, for protocols that count in cells.
        compared: Whether to predict other protocols, and the loss with fewer honest users.
        side_by_side: Whether to compare other protocols in detail, which measures CPU time.
        trust: Trust for a recommendation; None for no recommendation.
        colluding: Share of the present users that collude, at least 0 and below 1; see `outlook`.
        dropout: Share of the users absent at an epoch, at least 0 and below 1.
        by_size: Sizes of groups of a breakdown, as shares of the users; by default all are equal.

    Raises:
        JobError: If no constants exist for the job's parameters and horizon, or if its protocol has
            no forecast, or no forecast for other change budgets or item shares.
        ValueError: If `users` or `error` is not positive.

    >>> from dpstream.pipeline.jobs.job_files import parse_job
    >>> expected = plan(parse_job('''
    ... name: weeks
    ... protocol: future_rand
    ... parameters: {epsilon: 1, max_changes: 4}
    ... epochs: {count: 256}
    ... '''))
    >>> round(expected.rmse / 100, 1), expected.guarantee.unit
    (20.1, 'stream')
    """
    if users < 1:
        raise ValueError(f"got {users} users; expected at least 1")
    if error is not None and not 0 < error < math.inf:
        raise ValueError(f"target error is {error:g}; expected a share or number of users above 0")
    protocol = job.protocol_entry
    law = job.calibrate()
    forecast = forecast_of(job, law, held)
    cells = forecast if isinstance(forecast, CellForecast) else None
    crowds = protocol.crowds(law)
    # Devices that parties add contribute noise, too.
    senders = users + job.added_by_all(law)
    deviations = forecast.standard_errors(senders)
    bounded = forecast if isinstance(forecast, BoundedForecast) else None
    of_share = forecast if isinstance(forecast, ShareForecast) else None
    reports = (forecast.reports_per_user * users).tolist()
    reports_per_user = float(forecast.reports_per_user.sum())
    weighed = () if changes is None else weigh_changes(job, users, changes)
    smoothed = _smoothed(forecast, senders)
    measures = measure_errors(job, forecast, users, by_size)
    found = compare(job, law, users) if side_by_side or trust is not None else ()
    wanted = TARGET_ERRORS if error is None or error >= 1 else (error,)
    fewest = job.shuffle.minimum if protocol.shuffling is not None else 1
    if crowds is not None:
        # Each of the equal crowds must retain the minimum.
        fewest = crowds.crowds * (job.shuffle.minimum + crowds.counts.shift)
    return Plan(
        job=job.name,
        protocol=protocol.name,
        guarantee=job.guarantee_of(law),
        parties=party_guarantees(job, law),
        budget=_fresh_budget(job),
        minimum=job.shuffle.minimum,
        contributors=contributor_curve(protocol, law) if compared else (),
        alternatives=alternatives(job, law, users) if compared else (),
        comparison=found,
        recommendation=None if trust is None else recommend(found, trust, _in_users(error, users)),
        outlook=outlook(job, law, users, colluding=colluding, dropout=dropout)
        if colluding or dropout
        else None,
        crowds=None if crowds is None else plan_crowds(crowds, forecast, users),
        measures=measures,
        cells=None if cells is None else cells.cells,
        predicted_error=None if cells is None else cells.predicted_error(senders),
        noise_error=None if cells is None else cells.noise_error(senders),
        users=users,
        rmse=rmse_of(forecast, senders),
        share=None if of_share is None else of_share.share,
        half_rmse=None if of_share is None else rmse_of(of_share.at_share(0.5), senders),
        share_rmses=()
        if of_share is None
        else tuple(rmse_of(of_share.at_share(each), senders) for each in SHARES),
        smoothed_rmse=None if smoothed is None else root_mean_square(smoothed),
        largest_error=largest_error(deviations),
        published_bound=None if bounded is None else bounded.published_bound(users, EXCEEDED),
        horizon=forecast.horizon if isinstance(forecast, DyadicForecast) else None,
        epochs=tuple(
            map(
                ExpectedEpoch,
                range(1, job.epochs.count + 1),
                deviations.tolist(),
                reports,
                repeat(None) if smoothed is None else smoothed.tolist(),
                _beginnings(job),
            )
        ),
        windows=tuple(
            ExpectedWindow(window, window_error(protocol, law, forecast, senders, window))
            for window in job.roll_up or ()
        ),
        reports_per_user=reports_per_user,
        bytes_per_user=_bytes_per_user(job, law, users, reports_per_user),
        messages_per_user=reports_per_user / (job.epochs.count if protocol.per_epoch else 1),
        messages_unit="epoch" if protocol.per_epoch else "horizon",
        users_needed=tuple(
            UsersNeeded(share, users_needed(forecast, share, fewest, senders - users))
            for share in wanted
        ),
        most_users=None
        if error is None or error < 1
        else UsersNeeded(error, most_users(forecast, error, job.shuffle.minimum, senders - users)),
        assumption=_assumption(job, law, changes),
        changes=weighed,
        constants=tuple(dict(row) for row in forecast.constants),
        poisoning_bound=poisoning_bound(deploy_job(job, deployed_at=0))
        if compared and job.devices is not None
        else None,
        notes=(
            *_of_measures(job),
            *cheaper_notes(job, users, measures),
            *spare_notes(job, users, measures, by_size),
            *hidden_notes(job, law, measures),
            *forecast.notes,
            *(forecast.detection_notes(users) if isinstance(forecast, SearchedForecast) else ()),
            *_of_tables(job, law),
            *_of_unknown_users(job, law),
        ),
        warnings=tuple(warnings_for(job, law, users, weighed)),
    )


def _in_users(error: float | None, users: int) -> float | None:
    return None if error is None else error if error >= 1 else error * users


def _assumption(job: Job, law: Law, shares: NDArray[np.float64] | None) -> str | None:
    epochs = job.epochs.count
    limit = job.protocol_entry.aggregation.change_limit(law, job.parameters, epochs)
    if limit is None:
        return None
    if shares is None:
        pace = max(1, epochs // max(1, limit.max_changes))
        return (
            f"{limit}. The limit lasts for all {epochs:,} epochs if a user changes every "
            f"{pace:,} epochs, and for half of them if a user changes twice as often"
        )
    typical = int(np.searchsorted(np.cumsum(shares), 0.5))
    if typical <= limit.max_changes:
        return f"{limit}. A typical user makes {typical:,}, within the limit at all epochs"
    # Changes at uniformly random epochs.
    last = math.ceil(epochs * limit.max_changes / (typical + 1))
    return f"{limit}. A typical user makes {typical:,} and reaches the limit by epoch {last:,}"


def _beginnings(job: Job) -> Iterator[str | None]:
    calendar = job.epochs.calendar
    if calendar is None or job.epochs.renew:
        return repeat(None)
    return map(calendar.shown, count(1))


def users_needed(forecast: Forecast, error: float, fewest: int = 1, added: int = 0) -> int | None:
    """Return the minimum number of users for which the RMSE is at most `error` times that number.

    The result is at least `fewest`, the minimum for a window; None if no number up to 2^50
    suffices. Parties after the first stage add `added` devices to each window.
    """

    def suffice(users: int) -> bool:
        return rmse_of(forecast, users + added) <= error * users

    return fewest if suffice(fewest) else _fewest(suffice)


def most_users(forecast: Forecast, error: float, fewest: int = 1, added: int = 0) -> int | None:
    """Return the maximum number of users for an RMSE of at most `error` users.

    Returns None if even `fewest`, the minimum for a window, is too many, and `ANY_NUMBER` if there
    is no limit. Parties after the first stage add `added` devices to each window.
    """
    too_many = _fewest(lambda users: rmse_of(forecast, users + added) > error)
    if too_many is None:
        return ANY_NUMBER
    return too_many - 1 if too_many > fewest else None


def _fewest(reached: Callable[[int], bool]) -> int | None:
    if not reached(ANY_NUMBER):
        return None
    return least_integer(reached, 0, ANY_NUMBER)


def _fresh_budget(job: Job) -> FreshBudget | None:
    if job.budget is None:
        return None
    deployed = deploy_job(job, deployed_at=0)
    fitting = horizons_within_budget(deployed, ())
    horizons = fitting or 1
    try:
        check_budget(deployed.model_copy(update={"horizons": fitting}), ())
    except BudgetError:
        return None  # a warning reports it
    charge = Charge.of(deployed)
    period = None if job.budget.per is None else str(job.budget.per)
    if period is not None:
        horizons = charge.horizons_in(period) or horizons
    return FreshBudget(job.budget.epsilon, horizons, horizons * charge.epsilon, period)


def _smoothed(forecast: Forecast, users: int) -> NDArray[np.float64] | None:
    if not isinstance(forecast, SmoothedForecast):
        return None
    return forecast.smoothed_standard_errors(users)


def _bytes_per_user(job: Job, law: Law, users: int, reports_per_user: float) -> float:
    protocol = job.protocol_entry
    if job.sealed is None:
        return reports_per_user * protocol.message_format(law).report_bytes
    if job.shared:
        form = job.share_format(law)
        return job.epochs.count * form.chunks * form.row_format.report_bytes / users
    boxed = sealed_format(protocol.message_format(law), 1 + len(job.route.hops)).report_bytes
    if protocol.shuffling is None:
        return reports_per_user * boxed
    epochs, instances = range(1, job.epochs.count + 1), job.shuffle.instances
    most = [protocol.shuffling.capacity(law, epoch, users) for epoch in epochs]
    if instances > 1:
        most = [instances * room_of_part(each, instances) for each in most]
    return sum(most) / users * boxed


def _of_measures(job: Job) -> tuple[str, ...]:
    if job.measures is None:
        return ()
    from dpstream.pipeline.jobs.measured_jobs import reason

    why = reason(job)
    return () if why is None else (why,)


def _of_tables(job: Job, law: Law) -> tuple[str, ...]:
    if not job.shared:
        return ()
    form = job.share_format(law)
    sent = form.chunks * form.row_format.report_bytes
    records = "1 record" if form.chunks == 1 else f"{form.chunks:,} records"
    return (
        f"reports are in shares: every producer sends {sent:,} bytes in {records} per epoch, "
        "independent of its number of devices; the bytes shown are for one producer with all "
        "users",
    )


def _of_unknown_users(job: Job, law: Law) -> tuple[str, ...]:
    if job.devices is None or job.devices.tokens is not None:
        return ()
    protocol = job.protocol_entry
    left = "which its own epsilon still protects"
    if protocol.contributors(law) is not None:
        left = "without the noise of other users that the guarantee assumes"
    elif protocol.shuffling is not None:
        left = "which the shuffler's noise still protects"
    return (
        "without devices.tokens any client can invent devices: an attacker can invent all but "
        f"one of the shuffle.minimum devices ({job.shuffle.minimum:,}), to see what that one "
        f"adds, {left}",
    )
