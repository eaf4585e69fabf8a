"""Continual counts of one and the same population by several protocols, side by side.

Who trusts the shuffle stage gets much smaller errors for the same privacy loss, and sends more;
FutureRand asks for no trust, nor do hadamard_stream, its likeness for items, and range_stream, that
for numbers. Which of them is best depends on the horizon and on how often users change; over a few
epochs it may be projective_geometry, which pays for each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.jobs.job_files import Job
from pipeline.protocols.forecasts import BoostedForecast
from pipeline.protocols.protocol import Law
from pipeline.protocols.registry import PROTOCOLS


@dataclass(frozen=True, slots=True)
class Alternative:
    """What to expect of a protocol.

    Attributes:
        protocol: its name.
        changes: of a user, as many as are followed at once; None: all, since every epoch stands by
            itself.
        boost: of shuffled counts, otherwise None.
        rmse: root mean squared error over all epochs, in users.
        messages_per_user: over the horizon.
        trust: who has to be trusted.
        planned: whether this is the job's own.
    """

    protocol: str
    changes: int | None
    boost: int | None
    rmse: float
    messages_per_user: float
    trust: str
    planned: bool = False


def alternatives(job: Job, law: Law, users: int) -> tuple[Alternative, ...]:
    """The job and others with the same epsilon, delta, horizon, changes and users.

    Args:
        job: any; empty where its protocol's entry names no alternatives.
        law: the job's constants.
        users: all of them reporting at every epoch.

    >>> from pipeline.jobs.job_files import parse_job
    >>> job = parse_job('''
    ... name: weeks
    ... protocol: shuffled_tree
    ... parameters: {epsilon: 1, delta: 1.0e-6, changes: 4}
    ... epochs: {count: 170}
    ... shuffle: {minimum: 32593}
    ... ''')
    >>> found = alternatives(job, job.calibrate(), users=32593)
    >>> [(each.protocol, round(each.rmse)) for each in found]
    [('shuffled_tree', 62), ('shuffled_counts', 32), ('shuffled_counts', 55), ('future_rand', 3182)]
    """
    asked = job.parameters
    candidates = tuple(job.protocol_entry.alternatives(asked, job.epochs.count))
    if not candidates:
        return ()
    own = _expected(job, job.protocol, asked, law, users)
    found, laws = [replace(own, planned=True)], [(job.protocol, law)]
    for protocol, make in candidates:
        try:
            parameters = make()
            other = PROTOCOLS[protocol].calibrate(parameters, job.epochs.count, job.shuffle.minimum)
        except ValueError:
            continue
        if (protocol, other) not in laws:
            laws.append((protocol, other))
            found.append(_expected(job, protocol, parameters, other, users))
    return tuple(found)


def _expected(job: Job, protocol: str, parameters: Any, law: Any, users: int) -> Alternative:
    entry = PROTOCOLS[protocol]
    assert entry.forecast is not None
    forecast = entry.forecast(law, parameters, job.epochs.count)
    boost = forecast.boost if isinstance(forecast, BoostedForecast) else None
    return Alternative(
        protocol=protocol,
        changes=None if boost == 0 else getattr(parameters, "changes", None),
        boost=boost,
        rmse=math.sqrt(float(np.square(forecast.standard_deviations(users)).mean())),
        messages_per_user=float(forecast.reports_per_user.sum()),
        trust=entry.randomizer(law).guarantee.trust,
    )
