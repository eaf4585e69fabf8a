"""What a job promises and what to expect of it, before it is deployed and before any data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
from dpstream.pipeline.planning.influence import influence_of_one
from dpstream.pipeline.planning.outlook import (
    HonestContributors,
    Outlook,
    contributor_curve,
    outlook,
)
from dpstream.pipeline.planning.parties import PartyGuarantee, party_guarantees
from dpstream.pipeline.planning.plan_alternatives import Alternative, alternatives
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
    SmoothedForecast,
)
from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.results.expected_errors import (
    EXCEEDED,
    forecast_of,
    largest_error,
    rmse_of,
    root_mean_square,
)
from dpstream.randomizers.division import room_of_part
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.search import least_integer
from dpstream.topics.sealed_words import sealed_form

DEFAULT_USERS = 10_000

# As shares of the users; what `Plan.users_needed` is given for, unless another one is wanted.
WANTED_ERRORS = (0.1, 0.05, 0.02, 0.01)

ANY_NUMBER = 2**50
"""Of users: no more are thought of."""


@dataclass(frozen=True, slots=True)
class ExpectedEpoch:
    """One epoch.

    Attributes:
        epoch: its number.
        standard_deviation: of its estimate, in users.
        reports: in its window.
        smoothed: standard deviation of its estimate once the horizon is over and all estimates are
            smoothed, in users; None where the protocol has no such estimates.
        begins: when it does; None without a calendar, or where each horizon has one of its number.
    """

    epoch: int
    standard_deviation: float
    reports: float
    smoothed: float | None = None
    begins: str | None = None


@dataclass(frozen=True, slots=True)
class UsersNeeded:
    """How many users bring the root mean squared error to what is wanted; None: no number."""

    error: float
    users: int | None


@dataclass(frozen=True, slots=True)
class FreshBudget:
    """What of a budget a job that renews takes if its people were charged nothing before.

    Attributes:
        epsilon: of the budget.
        horizons: how many it has room for.
        charged: epsilon, for all of them.
    """

    epsilon: float
    horizons: int
    charged: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to expect of a job.

    Attributes:
        job: the job's name.
        protocol: its protocol.
        guarantee: what it promises every user.
        parties: what is promised against each of those who see something of the job.
        budget: of a job that renews; None without one that has room for a horizon.
        minimum: the fewest contributors a window is released with.
        contributors: what becomes of the guarantee with fewer honest ones; empty where it does not
            rest on them, and unless it was asked for.
        alternatives: what to expect of the job and of other protocols; empty where there are none,
            and unless they were asked for.
        comparison: the same with local losses, bytes and seconds, and the job alone where there
            are no others; empty unless it was asked for.
        recommendation: for a stated trust and error; None unless it was asked for.
        outlook: with fewer contributors, of whom fewer are honest; None unless it was asked for.
        crowds: of a job with crowds; the errors below are those in one of crowds of equal size.
        cells: what is counted of items, in words; None for protocols that do not count in cells.
        predicted_error: mean absolute error of an item that few hold, in users; None for others.
        noise_error: what it would be with noise alone; None for others.
        gradient_error: of a protocol that learns, the root mean squared length of what noise adds
            to the gradient of a step, in percent of the longest gradient that counts in full; what
            follows is then in percent, too, and not in users. None for others.
        users: the number of users that the expectations are for, all of them reporting always.
        rmse: expected root mean squared error over all epochs, in users.
        smoothed_rmse: the same, of the smoothed estimates; None where there are none.
        largest_error: what no error of all epochs exceeds in 19 of 20 runs, in users.
        published_bound: the same by the theorem of the protocol's paper; None where there is none.
        horizon: the epochs rounded up to a power of two; None where that is not needed.
        epochs: expectations for every epoch.
        reports_per_user: expected number of reports a device sends over all epochs.
        bytes_per_user: expected size of these reports, without what frames and batches add; where
            they are sealed, with their boxes, and the chaff that hides how many there are; where
            they are in shares, of one producer for all.
        messages_per_user: as `parameters.messages_per_user` limits it, by `messages_unit`.
        messages_unit: "epoch" where epochs stand alone, otherwise "horizon".
        users_needed: for a wanted error; at least as many as a window is released with. Empty of
            protocols that learn.
        most_users: up to how many users the error stays within a wanted one, which grows with them;
            at least as many as a window is released with.
        assumption: the changes of one person that intervals assume, in words, and when a typical
            person's run out; None where intervals hold for any stream of values.
        changes: what to expect with other budgets of changes, for a given share of users by number
            of changes; empty without.
        constants: the protocol's calibrated constants, as rows of a table.
        one_liar: where devices report for themselves and it was asked for, by how many users one
            that lies can move an estimate at most, see `influence_of_one`.
        caveats: what the figures leave out.
        warnings: what will keep the job, or others about the same people, from running, or this one
            from publishing.
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
    cells: str | None
    predicted_error: float | None
    noise_error: float | None
    gradient_error: float | None
    users: int
    rmse: float
    smoothed_rmse: float | None
    largest_error: float
    published_bound: float | None
    horizon: int | None
    epochs: tuple[ExpectedEpoch, ...]
    reports_per_user: float
    bytes_per_user: float
    messages_per_user: float
    messages_unit: Literal["epoch", "horizon"]
    users_needed: tuple[UsersNeeded, ...]
    most_users: UsersNeeded | None
    assumption: str | None
    changes: tuple[ChangesChoice, ...]
    constants: tuple[dict[str, int | float], ...]
    one_liar: float | None
    caveats: tuple[str, ...]
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
    absent: float = 0.0,
) -> Plan:
    """Calibrate a job and say what to expect.

    Args:
        job: any job.
        users: how many users, all of them reporting at every epoch.
        error: a wanted root mean squared error: below 1 a share of the users, otherwise a number
            of them.
        changes: the share of users with 0, 1, ... changes in a horizon.
        held: the shares of users that hold each item, for protocols that count in cells.
        compared: whether to weigh other protocols, and what fewer honest contributors mean, too.
        side_by_side: whether to say more of other protocols, for which devices are timed.
        trust: whom to trust, for one of them to be recommended; None: none is.
        colluding: share of those who are there that hides nobody, from 0 to below 1.
        absent: share of the users that are not there at an epoch, from 0 to below 1.

    Raises:
        JobError: no constants exist for the job's parameters and horizon, or its protocol
            has no forecast; or none for other budgets of changes, or shares of items.
        ValueError: there is not one user, or the wanted error is not above 0.

    >>> from dpstream.pipeline.jobs.job_files import parse_job
    >>> expected = plan(parse_job('''
    ... name: weeks
    ... protocol: future_rand
    ... parameters: {epsilon: 1, changes: 4}
    ... epochs: {count: 256}
    ... '''))
    >>> round(expected.rmse / 100, 1), expected.guarantee.unit
    (20.1, 'stream')
    """
    if users < 1:
        raise ValueError(f"{users} users: give a number from 1 on")
    if error is not None and not 0 < error < math.inf:
        raise ValueError(f"a wanted error of {error:g}: give a share or number of users above 0")
    protocol = job.protocol_entry
    law = job.calibrate()
    forecast = forecast_of(job, law, held)
    cells = forecast if isinstance(forecast, CellForecast) else None
    crowds = protocol.crowds(law)
    # Noise is that of the devices that parties add, too.
    senders = users + job.added_by_all(law)
    deviations = forecast.standard_deviations(senders)
    bounded = forecast if isinstance(forecast, BoundedForecast) else None
    reports = (forecast.reports_per_user * users).tolist()
    reports_per_user = float(forecast.reports_per_user.sum())
    weighed = () if changes is None else weigh_changes(job, users, changes)
    smoothed = _smoothed(forecast, senders)
    found = compare(job, law, users) if side_by_side or trust is not None else ()
    wanted = WANTED_ERRORS if error is None or error >= 1 else (error,)
    fewest = job.shuffle.minimum if protocol.shuffling is not None else 1
    if crowds is not None:
        # Of each of equal crowds as many must be left.
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
        outlook=outlook(job, law, users, colluding=colluding, absent=absent)
        if colluding or absent
        else None,
        crowds=None if crowds is None else plan_crowds(crowds, forecast, users),
        cells=None if cells is None else cells.cells,
        predicted_error=None if cells is None else cells.predicted_error(senders),
        noise_error=None if cells is None else cells.noise_error(senders),
        gradient_error=rmse_of(forecast, senders) if protocol.learning is not None else None,
        users=users,
        rmse=rmse_of(forecast, senders),
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
        reports_per_user=reports_per_user,
        bytes_per_user=_bytes_per_user(job, law, users, reports_per_user),
        messages_per_user=reports_per_user / (job.epochs.count if protocol.per_epoch else 1),
        messages_unit="epoch" if protocol.per_epoch else "horizon",
        users_needed=tuple(
            UsersNeeded(share, users_needed(forecast, share, fewest, senders - users))
            for share in (wanted if protocol.learning is None else ())
        ),
        most_users=None
        if error is None or error < 1
        else UsersNeeded(error, most_users(forecast, error, job.shuffle.minimum, senders - users)),
        assumption=_assumption(job, law, changes),
        changes=weighed,
        constants=tuple(dict(row) for row in forecast.constants),
        one_liar=_one_liar(job) if compared else None,
        caveats=(
            *forecast.caveats,
            *(forecast.found_caveats(users) if isinstance(forecast, SearchedForecast) else ()),
            *_of_tables(job, law),
            *_of_strangers(job, protocol.shuffling is not None),
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
        pace = max(1, epochs // max(1, limit.changes))
        return (
            f"{limit}. Those of a person who changes every {pace:,} epochs last for all "
            f"{epochs:,}; of one who changes twice as often, for half of them"
        )
    typical = int(np.searchsorted(np.cumsum(shares), 0.5))
    if typical <= limit.changes:
        return f"{limit}. A typical person makes {typical:,}, and these last for all epochs"
    # Changes on epochs drawn at random.
    last = math.ceil(epochs * limit.changes / (typical + 1))
    return f"{limit}. A typical person makes {typical:,}: they run out by epoch {last:,}"


def _one_liar(job: Job) -> float | None:
    return None if job.devices is None else influence_of_one(deploy_job(job, deployed_at=0))


def _beginnings(job: Job) -> Iterator[str | None]:
    """When each epoch begins, from the first one on."""
    calendar = job.epochs.calendar
    if calendar is None or job.epochs.renew:
        return repeat(None)
    return map(calendar.shown, count(1))


def users_needed(forecast: Forecast, error: float, fewest: int = 1, added: int = 0) -> int | None:
    """The fewest users whose estimates have a root mean squared error of at most a share of them.

    Args:
        forecast: of the job's law.
        error: the wanted error divided by the number of users, above 0.
        fewest: users a window is released with.
        added: devices that parties add to a window.

    Returns:
        None if no number of users up to 2^50 suffices.
    """

    def suffice(users: int) -> bool:
        return rmse_of(forecast, users + added) <= error * users

    return fewest if suffice(fewest) else _fewest(suffice)


def most_users(forecast: Forecast, error: float, fewest: int = 1, added: int = 0) -> int | None:
    """The most users whose estimates have a root mean squared error of at most so many of them.

    Args:
        forecast: of the job's law.
        error: the wanted error, in users.
        fewest: with which a window is released.
        added: devices that parties add to a window.

    Returns:
        None if not even the estimates of the fewest have; `ANY_NUMBER` if all do.
    """
    too_many = _fewest(lambda users: rmse_of(forecast, users + added) > error)
    if too_many is None:
        return ANY_NUMBER
    return too_many - 1 if too_many > fewest else None


def _fewest(reached: Callable[[int], bool]) -> int | None:
    """The fewest users with something that all larger numbers of users have too."""
    if not reached(ANY_NUMBER):
        return None
    return least_integer(reached, 0, ANY_NUMBER)


def _fresh_budget(job: Job) -> FreshBudget | None:
    if job.budget is None or not job.epochs.renew:
        return None
    deployed = deploy_job(job, deployed_at=0)
    horizons = horizons_within_budget(deployed, ()) or 1
    try:
        check_budget(deployed.model_copy(update={"horizons": horizons}), ())
    except BudgetError:
        return None  # a warning says so
    return FreshBudget(job.budget.epsilon, horizons, horizons * Charge.of(deployed).epsilon)


def _smoothed(forecast: Forecast, users: int) -> NDArray[np.float64] | None:
    if not isinstance(forecast, SmoothedForecast):
        return None
    return forecast.smoothed_standard_deviations(users)


def _bytes_per_user(job: Job, law: Law, users: int, reports_per_user: float) -> float:
    protocol = job.protocol_entry
    if job.sealed is None:
        return reports_per_user * protocol.word_form(law).report_bytes
    if job.shared:
        form = job.share_form(law)
        return job.epochs.count * form.pieces * form.row_form.report_bytes / users
    boxed = sealed_form(protocol.word_form(law), 1 + len(job.hops)).report_bytes
    if protocol.shuffling is None:
        return reports_per_user * boxed
    epochs, instances = range(1, job.epochs.count + 1), job.shuffle.instances
    most = [protocol.shuffling.capacity(law, epoch, users) for epoch in epochs]
    if instances > 1:
        most = [instances * room_of_part(each, instances) for each in most]
    return sum(most) / users * boxed


def _of_tables(job: Job, law: Law) -> tuple[str, ...]:
    if not job.shared:
        return ()
    form = job.share_form(law)
    sent = form.pieces * form.row_form.report_bytes
    records = "1 record" if form.pieces == 1 else f"{form.pieces:,} records"
    return (
        f"reports are in shares: every producer sends {sent:,} bytes in {records} at an epoch, "
        "however many devices it stands for; bytes are those of one producer for all users",
    )


def _of_strangers(job: Job, needs_shuffle: bool) -> tuple[str, ...]:
    if job.devices is None or job.devices.tokens is not None:
        return ()
    left = "without the noise of others that the guarantee counts on"
    return (
        "without devices.tokens anybody can invent devices: of shuffle.minimum, "
        f"{job.shuffle.minimum:,}, all but one may be invented, by whoever wants to see what that "
        f"one adds, {left if needs_shuffle else 'which its own epsilon still protects'}",
    )
