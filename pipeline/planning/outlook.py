"""What becomes of a job when some people stay away and some of those who are there collude.

Whoever stays away makes windows smaller; below `shuffle.minimum` they are withheld. Whoever
colludes is there, but tells what it has sent, or leaves its noise out: nobody hides behind it. A
guarantee that counts on honest contributors is sized on the smallest window that is released, of
which the same share colludes; a window of the expected size has more of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.protocols.late_calibration import late_function
from dpstream.pipeline.protocols.protocol import Law, Protocol, Shuffling

# Imported when it is needed: a plan that was made before is read much faster.
_epsilon_of_streams = late_function(
    "dpstream.randomizers.accounting.whole_streams", "epsilon_of_streams"
)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What holds with fewer contributors, of whom fewer are honest.

    Attributes:
        colluding: share of those who are there.
        absent: share of the users, at every epoch.
        present: how many are there.
        released: whether that is enough for a window.
        honest: of those who are there.
        honest_at_least: of the smallest window that is released.
        epsilon: with `honest`; None: delta is not enough, or nothing is released.
        epsilon_at_least: with `honest_at_least`: what can be promised; None as above.
        rests_on_them: whether epsilon rests on honest contributors at all.
    """

    colluding: float
    absent: float
    present: int
    released: bool
    honest: int
    honest_at_least: int
    epsilon: float | None
    epsilon_at_least: float | None
    rests_on_them: bool


def outlook(job: Job, law: Law, users: int, *, colluding: float, absent: float) -> Outlook:
    """Recompute a guarantee.

    Args:
        job: any.
        law: its constants.
        users: that are enrolled.
        colluding: from 0 to below 1, of those who are there.
        absent: from 0 to below 1, of the users.

    >>> from dpstream.pipeline.jobs.job_files import parse_job
    >>> job = parse_job('''
    ... name: votes
    ... protocol: count_min
    ... parameters: {epsilon: 1, delta: 1.0e-6, domain: [a, b]}
    ... epochs: {count: 1}
    ... shuffle: {minimum: 1000}
    ... ''')
    >>> seen = outlook(job, job.calibrate(), 2000, colluding=0.5, absent=0.0)
    >>> seen.honest, round(seen.epsilon, 2), seen.honest_at_least, round(seen.epsilon_at_least, 2)
    (1000, 1.0, 500, 1.69)
    """
    # A share is a decimal number: a tenth of 10 is 1, and rounding is against ourselves.
    present = _left(users, absent)
    released = present >= job.shuffle.minimum
    needed = job.protocol_entry.contributors(law)
    honest, at_least = _left(present, colluding), _left(job.shuffle.minimum, colluding)
    if needed is not None:
        at_least = _left(needed, colluding)
    return Outlook(
        colluding=colluding,
        absent=absent,
        present=present,
        released=released,
        honest=honest,
        honest_at_least=at_least,
        epsilon=_epsilon(job, law, honest) if released else None,
        epsilon_at_least=_epsilon(job, law, at_least),
        rests_on_them=needed is not None or job.central is not None,
    )


def _left(users: int, gone: float) -> int:
    return max(0, math.floor(users * (1 - gone) + 1e-9))


def _epsilon(job: Job, law: Law, honest: int) -> float | None:
    protocol, guarantee = job.protocol_entry, job.guarantee_of(law)
    if job.central is not None:
        loss, delta = guarantee.epsilon, job.central.delta
        epsilon: float = loss if honest < 2 else _epsilon_of_streams(loss, honest, delta)
        return epsilon
    shuffling = protocol.shuffling
    if shuffling is None or shuffling.contributors(law) is None:
        return guarantee.epsilon
    return _amplified(shuffling, law, honest)


SHARES: Final = (1.0, 0.9, 0.75, 0.5, 0.25, 0.1)


@dataclass(frozen=True, slots=True)
class HonestContributors:
    """What a job promises if no more than so many contributors of a window add their dummies.

    Attributes:
        share: of those that the noise is sized on, from 0 to 1.
        contributors: as many, rounded down.
        epsilon: of what the guarantee is about, an epoch or a stream, with the law's delta; None:
            delta is not enough.
    """

    share: float
    contributors: int
    epsilon: float | None


def contributor_curve(
    protocol: Protocol, law: Law, shares: Sequence[float] = SHARES
) -> tuple[HonestContributors, ...]:
    """What some shares of the fewest contributors leave; nothing if all rests on none of them.

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
