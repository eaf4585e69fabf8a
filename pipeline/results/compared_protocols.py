"""Comparison of protocols for continual counts of the same population.

Protocols that trust the shuffler have much smaller errors for the same privacy loss, and send more
messages. value_stream, future_rand, hadamard_values (for items) and range_values (for numbers) need
no trusted party. The best choice depends on the horizon and on the number of changes per user. With
few epochs or many changes, sampled_response, which asks each user once or a few times, may be best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpstream.pipeline.jobs.central import Central, hiding
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.protocols.alternatives import FEWEST_CHANGES
from dpstream.pipeline.protocols.alternatives import Alternative as ProtocolAlternative
from dpstream.pipeline.protocols.alternatives import alternatives as of_parameters
from dpstream.pipeline.protocols.forecasts import (
    BoostedForecast,
    Forecast,
    ShareForecast,
    WindowForecast,
)
from dpstream.pipeline.protocols.protocol import Law, Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.results.expected_errors import rmse_of
from dpstream.randomizers.guarantee import needs_no_trust

_USERS = 10_000
# Calibrating other protocols for longer horizons delays a deployment by tens of seconds.
_MOST_EPOCHS = 1 << 16


@dataclass(frozen=True, slots=True)
class Alternative:
    """Prediction of a protocol's errors and costs.

    Attributes:
        max_changes: Maximum number of tracked changes per user; None if epochs are independent, so
            that all changes are tracked.
        boost: Boost of `shuffled_counts`, otherwise None.
        rmse: RMSE over all epochs, in users.
        messages_per_user: Messages per user over the horizon.
        epsilon, delta: Loss per user over the whole horizon.
        planned: True for the job's own protocol.
        windows: RMSE of means over the windows of `Job.roll_up`, in users; None if unknown.
        half: RMSE for a value that half of the users have; None if the RMSE does not depend on it.
    """

    protocol: str
    max_changes: int | None
    boost: int | None
    rmse: float
    messages_per_user: float
    trust: str
    epsilon: float
    delta: float
    planned: bool = False
    windows: tuple[float | None, ...] = ()
    half: float | None = None

    @property
    def title(self) -> str:
        if self.max_changes is None:
            return self.protocol
        return f"{self.protocol} with max_changes {self.max_changes:,}"

    @property
    def trusted(self) -> str:
        return self.trust.partition(";")[0]

    @property
    def needs_no_trust(self) -> bool:
        return needs_no_trust(self.trust)


def alternatives(job: Job, law: Law, users: int) -> tuple[Alternative, ...]:
    """Predict errors of the job, and of alternatives with its epsilon, delta, horizon and changes.

    The result is empty if the protocol has no alternatives. All `users` report at every epoch.

    >>> from dpstream.pipeline.jobs.job_files import parse_job
    >>> job = parse_job('''
    ... name: weeks
    ... protocol: shuffled_counts
    ... parameters: {epsilon: 1, delta: 1.0e-6, max_changes: 4}
    ... epochs: {count: 170}
    ... shuffle: {minimum: 32593}
    ... ''')
    >>> found = alternatives(job, job.calibrate(), users=32593)
    >>> for each in found:
    ...     print(each.protocol, round(each.rmse))
    shuffled_counts 32
    shuffled_counts 55
    value_stream 1527
    future_rand 3182
    sampled_response 2366
    """
    found = candidates(job, law)
    if len(found) == 1 and not _others(job):
        return ()
    return tuple(expected_of(job, each, users) for each in found)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A protocol with parameters that suit a job; `planned` marks the job's own protocol."""

    protocol: str
    parameters: Any
    law: Law
    planned: bool = False


def candidates(job: Job, law: Law, *, untrusting: bool = False) -> tuple[Candidate, ...]:
    """Return the job's own protocol, and others that publish the same counts at the job's epsilon.

    With a central guarantee, protocols that rely on the shuffler are calibrated for that guarantee;
    with `untrusting`, such protocols are left out.
    """
    found = [Candidate(job.protocol, job.parameters, law, planned=True)]
    for protocol, make in _others(job):
        entry = PROTOCOLS[protocol]
        if untrusting and entry.shuffling is not None:
            continue
        try:
            parameters = entry.recurring(make()) if job.epochs.renew else make()
            if job.central is not None:
                parameters = _for_central(job, job.central, entry, parameters)
            other = entry.calibrate(parameters, job.epochs.count, job.shuffle.minimum)
        except ValueError:
            continue
        if not any((each.protocol, each.law) == (protocol, other) for each in found):
            found.append(Candidate(protocol, parameters, other))
    return tuple(found)


def _for_central(job: Job, stated: Central, entry: Protocol, parameters: Any) -> Any:
    """Return parameters with which a protocol has a job's central guarantee, if it can."""
    if entry.shuffling is not None:
        return replace(parameters, epsilon=stated.epsilon, delta=stated.delta)
    hidden = hiding(entry, parameters)
    if hidden is None or hidden == job.hidden:
        return parameters
    only = {"reports": 1} if hidden.one_window else {}
    return replace(parameters, epsilon=stated.most(job.shuffle.minimum, hidden), **only)


def _others(job: Job) -> tuple[ProtocolAlternative, ...]:
    # Other protocols do not count by crowd.
    return () if job.crowds else tuple(of_parameters(job.parameters, job.epochs.count))


def least_error(found: Sequence[Alternative], window: int | None = None) -> Alternative | None:
    """Return the alternative (or the job itself) with the least error and no additional trust.

    `window` is the index of the window whose means are compared; None compares single epochs.
    Returns None without alternatives, or if no error for the window is known.

    >>> shown = {"max_changes": 1, "boost": None, "messages_per_user": 1, "epsilon": 1, "delta": 0}
    >>> ours = Alternative("value_stream", rmse=7.0, trust="none", planned=True, **shown)
    >>> asked_once = Alternative("sampled_response", rmse=9.0, trust="none; really", **shown)
    >>> shuffled = Alternative("shuffled_counts", rmse=1.0, trust="the shuffle stage", **shown)
    >>> least_error([asked_once, ours, shuffled]).protocol
    'value_stream'
    >>> means = [replace(ours, windows=(6.0,)), replace(asked_once, windows=(4.5,))]
    >>> least_error(means, 0).protocol
    'sampled_response'
    """
    own = next((each for each in found if each.planned), None)
    if own is None:
        return None

    def error(each: Alternative) -> float:
        mean = each.rmse if window is None else each.windows[window]
        return math.inf if mean is None else mean

    alike = (each for each in found if each.trusted == own.trusted and each.delta <= own.delta)
    least = min(alike, key=error)
    return least if error(least) < math.inf else None


def best_lines(
    found: Sequence[Alternative], windows: Sequence[int] | None
) -> Iterator[tuple[str, str]]:
    """Yield labels and texts: the best protocol with the same trust, per epoch and per window."""
    for place, epochs in enumerate((1, *(windows or ())), -1):
        best = least_error(found, None if place < 0 else place)
        label = "best for single epochs" if place < 0 else f"best for means over {epochs:,} epochs"
        if best is None:
            yield label, "unknown: the error of these means cannot be predicted"
            continue
        error = best.rmse if place < 0 else best.windows[place]
        assert error is not None
        job = "this job, " if best.planned else ""
        at_half = least_error([replace(each, rmse=each.half or each.rmse) for each in found])
        other = ""
        if place < 0 and at_half is not None and at_half.title != best.title:
            other = f"; if half of the users have the value, {at_half.title}: {at_half.rmse:,.0f}"
        yield label, f"{job}{best.title}: RMSE {error:,.0f} users{other}"


def notes_of_deployment(job: Job, law: Law) -> Iterator[str]:
    """Yield reasons to choose other parameters or another protocol before a job is deployed.

    Protocols are compared only for jobs without a trusted party, at 10,000 users: all errors grow
    with the square root of the number of users, so the order is the same for any number. Only
    `plan` compares them for very long horizons.
    """
    if (warning := one_change_warning(job)) is not None:
        yield warning
    entry = job.protocol_entry
    if entry.shuffling is not None or entry.planning is None or job.epochs.count > _MOST_EPOCHS:
        return
    found = [expected_of(job, each, _USERS) for each in candidates(job, law, untrusting=True)]
    own = found[0]
    for place, epochs in enumerate((1, *(job.roll_up or ())), -1):
        best = least_error(found, None if place < 0 else place)
        if best is None or best.planned:
            continue
        error, other = (each.rmse if place < 0 else each.windows[place] for each in (best, own))
        of_what = "single epochs" if place < 0 else f"means over {epochs:,} epochs"
        instead = "an unknown RMSE" if other is None else f"{other:,.0f}"
        yield (
            f"{best.title} is predicted to be more accurate for {of_what} without a trusted party: "
            f"with {_USERS:,} users, RMSE {error:,.0f} instead of {instead}"
        )


def one_change_warning(job: Job) -> str | None:
    """Warn if the job tracks only one change of a value that can start and stop."""
    changes = getattr(job.parameters, "max_changes", None)
    if changes != 1 or job.domain.kind != "value" or job.epochs.count == 1:
        return None
    return (
        "parameters.max_changes is 1: a value that starts and stops changes twice, and its end "
        f"would appear late or not at all. Use at least {FEWEST_CHANGES}, unless no value goes back"
    )


def under_another_trust(found: Sequence[Alternative]) -> Alternative | None:
    """Return the best alternative that trusts the shuffler if the job does not, or vice versa."""
    own = next((each for each in found if each.planned), None)
    if own is None:
        return None
    others = (each for each in found if each.needs_no_trust != own.needs_no_trust)
    return min(others, key=lambda each: each.rmse, default=None)


def expected_of(job: Job, candidate: Candidate, users: int) -> Alternative:
    protocol, parameters, law = candidate.protocol, candidate.parameters, candidate.law
    entry = job.protocol_entry if candidate.planned else PROTOCOLS[protocol]
    assert entry.planning is not None
    forecast = entry.planning.forecast(law, parameters, job.epochs.count)
    boost = forecast.boost if isinstance(forecast, BoostedForecast) else None
    senders = users + job.added_by_all(law, entry)
    guarantee = entry.randomizer(law).guarantee
    paid = job.epochs.count if guarantee.unit == "epoch" and not guarantee.stream_epsilon else 1
    return Alternative(
        protocol=protocol,
        max_changes=None if boost == 0 else getattr(parameters, "max_changes", None),
        boost=boost,
        rmse=rmse_of(forecast, senders),
        messages_per_user=float(forecast.reports_per_user.sum()),
        trust=guarantee.trust,
        epsilon=paid * (guarantee.stream_epsilon or guarantee.epsilon),
        delta=paid * guarantee.delta,
        planned=candidate.planned,
        windows=tuple(
            window_error(entry, law, forecast, senders, window) for window in job.roll_up or ()
        ),
        half=rmse_of(forecast.at_share(0.5), senders)
        if isinstance(forecast, ShareForecast)
        else None,
    )


def window_error(
    entry: Protocol, law: Law, forecast: Forecast, users: int, window: int
) -> float | None:
    if isinstance(forecast, WindowForecast):
        return forecast.window_error(users, window)
    if not entry.per_epoch or entry.lasting_noise(law):
        return None
    return rmse_of(forecast, users) / math.sqrt(window)
