"""Guarantee of a job if some users are absent and some of the present ones collude.

- Absent users make windows smaller; windows with fewer than `shuffle.minimum` users are suppressed.
- Colluding users are present, but do not hide other users: they reveal what they sent, or omit
  their noise.
- A guarantee that relies on honest users must hold for the smallest released window, in which the
  same share of users colludes. A window of the expected size contains more honest users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.protocols.late_calibration import late_function
from dpstream.pipeline.protocols.protocol import Law, Protocol, Shuffling

# Imported on demand, because reading a plan made earlier does not need it.
_epsilon_of_streams = late_function(
    "dpstream.randomizers.accounting.whole_streams", "epsilon_of_streams"
)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Guarantee with fewer contributors, some of whom collude.

    Attributes:
        colluding: Share of the present users that collude.
        dropout: Share of the users absent at every epoch.
        present: Number of present users who are asked at an epoch.
        released: True if the present users suffice for a window.
        honest: Number of present users who are honest.
        honest_at_least: Number of honest users in the smallest released window.
        epsilon: Epsilon with `honest` users; None if delta is too small or windows are suppressed.
        epsilon_at_least: Epsilon with `honest_at_least` users, which is what can be guaranteed.
            None if delta is insufficient.
        rests_on_them: True if epsilon depends on the number of honest users.
    """

    colluding: float
    dropout: float
    present: int
    released: bool
    honest: int
    honest_at_least: int
    epsilon: float | None
    epsilon_at_least: float | None
    rests_on_them: bool


def outlook(job: Job, law: Law, users: int, *, colluding: float, dropout: float) -> Outlook:
    """Recompute a guarantee for shares of colluding and absent users, at least 0 and below 1.

    >>> from dpstream.pipeline.jobs.job_files import parse_job
    >>> job = parse_job('''
    ... name: votes
    ... protocol: count_min
    ... parameters: {epsilon: 1, delta: 1.0e-6, domain: [a, b]}
    ... epochs: {count: 1}
    ... shuffle: {minimum: 1000}
    ... ''')
    >>> seen = outlook(job, job.calibrate(), 2000, colluding=0.5, dropout=0.0)
    >>> seen.honest, round(seen.epsilon, 2), seen.honest_at_least, round(seen.epsilon_at_least, 2)
    (1000, 1.0, 500, 1.69)
    """
    # Shares are decimal numbers: 0.1 of 10 is exactly 1. Rounding is conservative.
    present = asked_users(job, law, _left(users, dropout))
    released = present >= job.shuffle.minimum
    needed = job.protocol_entry.contributors(law)
    honest, at_least = _left(present, colluding), _left(job.shuffle.minimum, colluding)
    if needed is not None:
        at_least = _left(needed, colluding)
    return Outlook(
        colluding=colluding,
        dropout=dropout,
        present=present,
        released=released,
        honest=honest,
        honest_at_least=at_least,
        epsilon=_epsilon(job, law, honest) if released else None,
        epsilon_at_least=_epsilon(job, law, at_least),
        rests_on_them=needed is not None or job.central is not None,
    )


def asked_users(job: Job, law: Law, users: int) -> int:
    entry = job.protocol_entry
    return users if entry.sampled is None else math.floor(users * entry.sampled(law))


def _left(users: int, gone: float) -> int:
    return max(0, math.floor(users * (1 - gone) + 1e-9))


def _epsilon(job: Job, law: Law, honest: int) -> float | None:
    protocol, guarantee = job.protocol_entry, job.guarantee_of(law)
    if job.central is not None:
        loss, delta = guarantee.epsilon, job.central.delta
        assert job.hidden is not None
        if honest < 2:
            return loss
        epsilon: float = _epsilon_of_streams(loss, honest, delta, job.hidden.binary)
        return epsilon
    shuffling = protocol.shuffling
    if shuffling is None or shuffling.contributors(law) is None:
        return guarantee.epsilon
    return _amplified(shuffling, law, honest)


SHARES: Final = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


@dataclass(frozen=True, slots=True)
class HonestContributors:
    """Guarantee if only `contributors` users in a window add their dummy messages.

    `contributors` is a `share` of the number of users for which the noise is calibrated, rounded
    down. `epsilon` is for the guarantee's unit (an epoch or a stream), with the delta of the
    mechanism. `epsilon` is None if that delta is insufficient.
    """

    share: float
    contributors: int
    epsilon: float | None


def contributor_curve(
    protocol: Protocol, law: Law, shares: Sequence[float] = SHARES
) -> tuple[HonestContributors, ...]:
    """Return guarantees for shares of the required honest users; empty if no users are required.

    >>> from dpstream.pipeline.protocols.registry import PROTOCOLS
    >>> from dpstream.randomizers.count_min import CountMinParameters
    >>> count_min = PROTOCOLS["count_min"]
    >>> law = count_min.calibrate(CountMinParameters(1.0, 1e-6, ("a", "b")), 1, 1000)
    >>> curve = contributor_curve(count_min, law, (1, 0.5))
    >>> [(each.contributors, round(each.epsilon, 2)) for each in curve]
    [(1000, 1.0), (500, 1.69)]
    """
    shuffling, needed = protocol.shuffling, protocol.contributors(law)
    if shuffling is None or needed is None:
        return ()
    found = [(share, math.floor(needed * share)) for share in shares]
    return tuple(HonestContributors(*each, _amplified(shuffling, law, each[1])) for each in found)


def _amplified(shuffling: Shuffling, law: Law, honest: int) -> float | None:
    amplified = shuffling.epsilon_with(law, honest) if honest else math.inf
    return amplified if math.isfinite(amplified) else None
