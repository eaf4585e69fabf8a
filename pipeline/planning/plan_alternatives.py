"""Comparison of protocols for continual counts of the same population.

Protocols that trust the shuffler have much smaller errors for the same privacy loss, and send more.
value_stream and future_rand need no trust, nor do hadamard_values (items) and range_values
(numbers). The best choice depends on the horizon and on the number of changes per user. With few
epochs or many changes it may be sampled_response, which asks each user once or a few times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.protocols.alternatives import Alternative as ProtocolAlternative
from dpstream.pipeline.protocols.alternatives import alternatives as of_parameters
from dpstream.pipeline.protocols.forecasts import BoostedForecast
from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.guarantee import needs_no_trust


@dataclass(frozen=True, slots=True)
class Alternative:
    """Prediction for a protocol.

    Attributes:
        max_changes: Maximum changes per user that are tracked; None if epochs are independent,
            which tracks all changes.
        boost: Boost of `shuffled_counts`, otherwise None.
        rmse: RMSE over all epochs, in users.
        messages_per_user: Messages over the horizon.
        epsilon: Loss per user over the whole horizon.
        delta: Delta of that loss; 0 for a pure guarantee.
        planned: True for the job's own protocol.
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

    @property
    def trusted(self) -> str:
        return self.trust.partition(";")[0]

    @property
    def needs_no_trust(self) -> bool:
        """True if the guarantee has no trusted party; otherwise the shuffler is trusted."""
        return needs_no_trust(self.trust)


def alternatives(job: Job, law: Law, users: int) -> tuple[Alternative, ...]:
    """Return the job and others with the same epsilon, delta, horizon, changes and users.

    Empty if the protocol has no alternatives. All `users` report at every epoch.

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


def candidates(job: Job, law: Law) -> tuple[Candidate, ...]:
    """Return the job's own protocol, and others that publish the same counts at its epsilon.

    With a central guarantee, protocols that rely on the shuffler are calibrated for it.
    """
    found = [Candidate(job.protocol, job.parameters, law, planned=True)]
    for protocol, make in _others(job):
        entry = PROTOCOLS[protocol]
        try:
            parameters = entry.recurring(make()) if job.epochs.renew else make()
            if job.central is not None and entry.shuffling is not None:
                stated = job.central
                parameters = replace(parameters, epsilon=stated.epsilon, delta=stated.delta)
            other = entry.calibrate(parameters, job.epochs.count, job.shuffle.minimum)
        except ValueError:
            continue
        if not any((each.protocol, each.law) == (protocol, other) for each in found):
            found.append(Candidate(protocol, parameters, other))
    return tuple(found)


def _others(job: Job) -> tuple[ProtocolAlternative, ...]:
    # Other protocols do not count by crowd.
    return () if job.crowds else tuple(of_parameters(job.parameters, job.epochs.count))


def least_error(found: Sequence[Alternative]) -> Alternative | None:
    """Return the alternative with the least error and no additional trust; None if it is the job.

    >>> shown = {"max_changes": 1, "boost": None, "messages_per_user": 1, "epsilon": 1, "delta": 0}
    >>> ours = Alternative("value_stream", rmse=9.0, trust="none", planned=True, **shown)
    >>> asked_anew = Alternative("sampled_response", rmse=7.0, trust="none; really", **shown)
    >>> shuffled = Alternative("shuffled_counts", rmse=1.0, trust="the shuffle stage", **shown)
    >>> least_error([ours, asked_anew, shuffled]).protocol, least_error([asked_anew, ours][1:])
    ('sampled_response', None)
    """
    own = next((each for each in found if each.planned), None)
    if own is None:
        return None
    alike = (each for each in found if each.trusted == own.trusted and each.delta <= own.delta)
    least = min(alike, key=lambda each: each.rmse)
    return least if least.rmse < own.rmse else None


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
        rmse=math.sqrt(float(np.square(forecast.standard_errors(senders)).mean())),
        messages_per_user=float(forecast.reports_per_user.sum()),
        trust=guarantee.trust,
        epsilon=paid * (guarantee.stream_epsilon or guarantee.epsilon),
        delta=paid * guarantee.delta,
        planned=candidate.planned,
    )
