"""Warnings about a job before it is deployed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta

from dpstream.pipeline.jobs.budgets import (
    BudgetError,
    check_budget,
    endless_warning,
    horizons_within_budget,
)
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.kafka.record_sizes import most_users
from dpstream.pipeline.planning.change_budgets import ChangesChoice
from dpstream.pipeline.planning.outlook import asked_users
from dpstream.pipeline.planning.parties import format_success_rate, whole_loss
from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.results.compared_protocols import one_change_warning
from dpstream.randomizers.guarantee import rounded_up

LARGE_EPSILON = 10.0
"""Epsilon, for everything a user does in a horizon, beyond which hardly anything is hidden."""

# A shuffle.minimum below this fraction (1 in N) of the users wastes accuracy.
_SMALL_PART = 10
# Standard deviations of the number of answers by which an epoch can fall below the mean.
_DEVIATIONS = 4
# Number of short epochs for which answers should be accepted after the end of their own.
_LATE_EPOCHS = 2
# Share of exhausted users that causes a warning.
_EXHAUSTED = 0.05


def warnings_for(
    job: Job, law: Law, users: int, weighed: Sequence[ChangesChoice] = ()
) -> Iterator[str]:
    """Yield warnings about suppressed epochs, misleading guarantees and obstacles to other jobs.

    `users` are expected to report at every epoch; `weighed` are predictions for change budgets.
    """
    yield from _of_turns(job, law, users)
    yield from _of_windows(job, law, users)
    yield from _of_budgets(job)
    yield from _of_losses(job, law, users)
    if not weighed and (warning := one_change_warning(job)) is not None:
        yield warning
    yield from _of_changes(job, weighed)
    yield from _of_records(job, law, users)


def _of_turns(job: Job, law: Law, users: int) -> Iterator[str]:
    asked, minimum = asked_users(job, law, users), job.shuffle.minimum
    if asked < minimum <= users:
        yield (
            f"of {users:,} users, only {asked:,} are asked at an epoch, fewer than "
            f"shuffle.minimum, {minimum:,}: every epoch would be suppressed. Lower "
            "shuffle.minimum, or use fewer epochs"
        )
    elif job.devices is not None and job.protocol_entry.sampled is not None:
        yield from _of_drawn_turns(job, asked)


def _of_drawn_turns(job: Job, asked: int) -> Iterator[str]:
    """Yield problems that arise if every device draws at random when it answers."""
    least, minimum = math.floor(asked - _DEVIATIONS * math.sqrt(asked)), job.shuffle.minimum
    if least < minimum <= asked:
        yield (
            f"devices draw at random when they answer: about {asked:,} answer at an epoch, "
            f"sometimes as few as {max(0, least):,}, below shuffle.minimum, {minimum:,}: such an "
            "epoch would be suppressed. Lower shuffle.minimum, or use fewer epochs"
        )
    length = job.epochs.length
    if length is None or length.months or length.exact >= timedelta(days=1):
        return
    if job.late < _LATE_EPOCHS * length.exact.total_seconds():
        yield (
            "an answer counts only if the device sends it before reports for its epoch become "
            "late. With epochs shorter than a day, devices that are often off miss more answers: "
            "if that depends on the value, estimates are biased. Set devices.late and "
            f"shuffle.grace to at least {_LATE_EPOCHS} epochs"
        )


def _of_windows(job: Job, law: Law, users: int) -> Iterator[str]:
    minimum, at_turn = job.shuffle.minimum, asked_users(job, law, users)
    counted_on = job.protocol_entry.contributors(law) is not None or job.central is not None
    if users < minimum:
        yield (
            f"{users:,} users are fewer than shuffle.minimum, {minimum:,}: every epoch would be "
            "suppressed. Add users, or lower shuffle.minimum"
        )
    elif minimum == 1:
        yield (
            "shuffle.minimum is 1: a window of a single device is released, without any other "
            "device to hide among"
        )
    elif counted_on and at_turn >= _SMALL_PART * minimum:
        yield (
            f"shuffle.minimum, {minimum:,}, is small compared with {at_turn:,} users: the "
            "guarantee assumes only that many users, which makes errors larger. Raise it to the "
            "smallest expected number of reporting users"
        )


def _of_budgets(job: Job) -> Iterator[str]:
    if job.budget is not None:
        try:
            first = deploy_job(job, deployed_at=0)
            fitting = horizons_within_budget(first, ())
            check_budget(first.model_copy(update={"horizons": fitting}), ())
        except BudgetError as error:
            yield f"deploy will reject this job: {error}"
    endless = endless_warning(job)
    if endless is not None:
        yield endless
    elif job.epochs.renew and job.budget is None:
        yield (
            f"job {job.name} is a recurring job without a budget: every horizon charges its users "
            "again, without limit. Add a budget: the job then ends when it is spent, unless the "
            "budget is for a period (per) and the job stays within it forever, as "
            "sampled_response can"
        )


def _of_records(job: Job, law: Law, users: int) -> Iterator[str]:
    most = most_users(job, law)
    if most is not None and users > most:
        yield (
            f"a record with the estimates of {job.domain.size - 1:,} items for {users:,} users may "
            "be too large for Kafka: "
            + (
                f"it fits with at most {most:,} users"
                if most >= job.shuffle.minimum
                else "deploy rejects it"
            )
            + ". Use fewer items"
        )


def _of_losses(job: Job, law: Law, users: int) -> Iterator[str]:
    guarantee, epochs = job.guarantee_of(law), job.epochs.count
    whole, delta = whole_loss(guarantee, epochs)
    if whole > LARGE_EPSILON:
        of_one = ""
        if whole > guarantee.epsilon:
            unit = "epoch" if guarantee.unit == "epoch" else "value that never changes"
            of_one = f"epsilon {rounded_up(guarantee.epsilon)} applies to one {unit}: "
        yield (
            f"{of_one}epsilon {rounded_up(whole)} for all values of a user in {epochs:,} epochs is "
            "a weak guarantee: guesses about one user may be right "
            f"{format_success_rate(whole, delta).replace(' in ', ' times in ')} instead of 50 "
            "times in 100"
        )
    deltas = [delta, *([] if guarantee.shuffled is None else [guarantee.shuffled.delta])]
    if max(deltas) * users >= 1:
        yield (
            f"delta {rounded_up(max(deltas))} is not below 1 in {users:,} users, which allows "
            f"disclosing all values of one user. Use at most {0.1 / users:.0e}"
        )


def _of_changes(job: Job, weighed: Sequence[ChangesChoice]) -> Iterator[str]:
    present = getattr(job.parameters, "max_changes", None)
    own = next((each for each in weighed if each.max_changes == present), None)
    best = next((each for each in weighed if each.best), None)
    if own is None or best is None or own.best or own.exhausted <= _EXHAUSTED:
        return
    yield (
        f"{own.exhausted:.0%} of the users change more often than parameters.max_changes, "
        f"{present}, covers. With {best.max_changes} the RMSE would be {best.rmse:,.0f} users "
        f"instead of {own.rmse:,.0f}"
    )
