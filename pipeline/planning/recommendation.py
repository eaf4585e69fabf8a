"""Comparison of all protocols that suit a job, and the recommended protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from dpstream.pipeline.jobs.central import hiding
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.parties import whole_loss
from dpstream.pipeline.protocols.protocol import Law, Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.results.compared_protocols import (
    Alternative,
    Candidate,
    candidates,
    expected_of,
)
from dpstream.randomizers.randomness import cryptographic_generator

DEVICES: Final = 2_000
"""Number of devices whose CPU time is measured, on one core."""
EPOCHS: Final = 16


def cpu_seconds(protocol: Protocol, law: Law, parameters: Any, last_epoch: int) -> float:
    """Measure the CPU seconds on one core for a million devices in one horizon, with enrollment.

    The result varies by tens of percent between machines and between runs.
    """
    domain, measured = protocol.values(parameters), min(EPOCHS, last_epoch)
    rng = cryptographic_generator()
    values = rng.integers(0, min(domain.size, 2), (DEVICES, *domain.shape))
    devices = protocol.randomizer(law)
    begun = time.process_time()
    devices.enroll(DEVICES, rng)
    enrolled = time.process_time()
    for epoch in range(1, measured + 1):
        devices.report(epoch, values, None, rng)
    reported = time.process_time()
    whole = (enrolled - begun) + (reported - enrolled) * last_epoch / measured
    return float(np.float64(whole) * 1e6 / DEVICES)


Trust = Literal["none", "shuffle"]


@dataclass(frozen=True, slots=True)
class Compared:
    """A protocol that suits the job; all numbers are for the whole horizon.

    Attributes:
        expected: The protocol's error, messages, trust and epsilon.
        central_epsilon: Epsilon against the analyst; if shuffling is guaranteed, after shuffling.
        local_epsilon: Epsilon against an observer who links a device's messages; None if nothing
            is hidden from such an observer.
        bytes_per_user: Bytes per user, without headers.
        cpu_seconds: CPU time for a million devices, on one core of this machine.
    """

    expected: Alternative
    central_epsilon: float
    central_delta: float
    local_epsilon: float | None
    bytes_per_user: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Index of the recommended protocol, and the reasons against all others.

    Attributes:
        chosen: None if all protocols need more trust, or if none was compared.
        why_not: Index and reason, in order of preference.
    """

    chosen: int | None
    why: str
    why_not: tuple[tuple[int, str], ...]


def compare(job: Job, law: Law, users: int) -> tuple[Compared, ...]:
    return tuple(_compared(job, each, users) for each in candidates(job, law))


def recommend(
    found: Sequence[Compared], trust: Trust, error: float | None = None
) -> Recommendation:
    """Choose a protocol for a level of trust and a maximum RMSE in users (None for the least RMSE).

    Candidates need at most this trust and have at most this error. The candidate that needs the
    least trust is chosen and, among equals, the one that sends the least. If there are no
    candidates, the protocol with the least error is chosen.
    """
    if len({each.expected.protocol for each in found}) == 1:
        why = "no other protocol was compared, so there is nothing to choose between"
        return Recommendation(None, why, ())
    allowed = [n for n, each in enumerate(found) if trust == "shuffle" or _no_trust(each)]
    rejected = [n for n in range(len(found)) if n not in allowed]
    enough = [n for n in allowed if error is not None and _error(found[n]) <= error]
    by_error = sorted(allowed, key=lambda n: _error(found[n]))
    by_cost = sorted(enough, key=lambda n: (not _no_trust(found[n]), found[n].bytes_per_user))
    order = [*by_cost, *(n for n in by_error if n not in enough), *rejected]
    if not allowed:
        return Recommendation(
            None,
            "every protocol for this job requires a trusted party. Allow trust in the shuffler, "
            "or change the query",
            tuple((n, _asks_for_trust(found[n])) for n in rejected),
        )
    chosen = order[0]
    return Recommendation(
        chosen,
        _why(found[chosen], trust, error, alike=len(enough or allowed), meets=bool(enough)),
        tuple((n, _why_not(found[n], found[chosen], trust, error)) for n in order[1:]),
    )


def _compared(job: Job, candidate: Candidate, users: int) -> Compared:
    entry = PROTOCOLS[candidate.protocol] if not candidate.planned else job.protocol_entry
    law, parameters, epochs = candidate.law, candidate.parameters, job.epochs.count
    expected = expected_of(job, candidate, users)
    guarantee = entry.randomizer(law).guarantee
    epsilon, delta = whole_loss(guarantee, epochs)
    apart = guarantee if entry.shuffling is None else entry.shuffling.without_shuffling(law)
    local = None if apart is None else whole_loss(apart, epochs)[0]
    if job.central is not None and hiding(entry, parameters) is not None:
        epsilon, delta = job.central.epsilon, job.central.delta
    return Compared(
        expected=expected,
        central_epsilon=epsilon,
        central_delta=delta,
        local_epsilon=local,
        bytes_per_user=expected.messages_per_user * entry.message_format(law).report_bytes,
        cpu_seconds=cpu_seconds(entry, law, parameters, epochs),
    )


def _no_trust(compared: Compared) -> bool:
    return compared.expected.needs_no_trust


def _error(compared: Compared) -> float:
    return compared.expected.rmse


def _why(chosen: Compared, trust: Trust, error: float | None, *, alike: int, meets: bool) -> str:
    who = "no party has to be trusted" if _no_trust(chosen) else "the shuffler has to be trusted"
    errs = f"its RMSE is {_error(chosen):,.1f} users"
    if meets:
        sends = (
            "; of the protocols that meet both conditions, it sends the fewest bytes"
            if alike > 1
            else ""
        )
        return f"{errs}, which meets the target; {who}{sends}"
    least = "the smallest under your trust assumptions"
    if trust == "none":
        rank = "smallest" if alike > 1 else "only one"
        least = f"the {rank} without a trusted party"
    found = "" if error is None else f"no protocol has an RMSE of at most {error:,.1f} users; "
    return f"{found}{errs}, {least}; {who}"


def _why_not(other: Compared, chosen: Compared, trust: Trust, error: float | None) -> str:
    if trust == "none" and not _no_trust(other):
        return _asks_for_trust(other)
    if error is not None and _error(other) > error:
        return f"RMSE is {_error(other):,.1f} users, more than {error:,.1f}"
    if error is not None and _no_trust(chosen) and not _no_trust(other):
        return _asks_for_trust(other)
    if error is not None and other.bytes_per_user >= chosen.bytes_per_user:
        return f"sends {other.bytes_per_user:,.0f} bytes per user, not {chosen.bytes_per_user:,.0f}"
    return f"RMSE is {_error(other):,.1f} users, not {_error(chosen):,.1f}"


def _asks_for_trust(other: Compared) -> str:
    return f"requires trusting {other.expected.trusted}"
