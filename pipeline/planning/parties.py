"""Guarantee of a job against each party, and the data that each party sees.

A guarantee is against a party: the analyst, the broker operator, the shuffler operator and others.
The parties see different data, so the guarantees differ. All parties also read the estimates, and
each one may collude with the analyst. `assumes` covers collusion with other parties. Everything
here follows from the job and its mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Literal

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.protocols.late_calibration import late_function
from dpstream.pipeline.protocols.protocol import DELTA, Law
from dpstream.randomizers.guarantee import (
    Guarantee,
    ShuffledStreams,
    attack_success_rate,
    needs_no_trust,
)

ALL_BUT_CERTAIN = 30.0
"""Epsilon beyond which every guess counts as certain, and no data counts as hidden."""


def format_success_rate(epsilon: float, delta: float = 0.0) -> str:
    """Format `attack_success_rate` as the number of successes in a number of tries, rounded up.

    >>> tuple(map(format_success_rate, (0.0, 1.0, 4.0, 7.0)))
    ('50 in 100', '74 in 100', '983 in 1,000', '9,991 in 10,000')
    >>> format_success_rate(math.inf)
    'always'
    """
    if epsilon > ALL_BUT_CERTAIN:
        return "always"
    wrong = 1 - attack_success_rate(epsilon, delta)
    tries = 100
    while wrong * tries < 3 and tries < 10**12:
        tries *= 10
    right = (Decimal(tries) * (1 - Decimal(repr(wrong)))).to_integral_value(ROUND_CEILING)
    return "always" if right >= tries else f"{int(right):,} in {tries:,}"


Kind = Literal["analyst", "aggregator", "stage", "broker", "collector", "producer"]

# Imported on demand, because reading a plan made earlier does not need it.
_epsilon_of_streams = late_function(
    "dpstream.randomizers.accounting.whole_streams", "epsilon_of_streams"
)

# Shuffling has its own row only if it leaves at most this share of epsilon.
_WORTH_SAYING = 0.9


@dataclass(frozen=True, slots=True)
class PartyGuarantee:
    """Guarantee against a party.

    Attributes:
        sees: Data about users that the party sees.
        epsilon: Epsilon for the unit, rounded up; None if nothing is hidden from the party.
        whole_epsilon: Epsilon for everything a user does in a horizon; None if `epsilon` is None.
        success_rate: Maximum success rate of a guess about everything a user does in a horizon,
            once the party has seen its data (baseline: one half).
        neighbors: Pairs of inputs that the guarantee compares; empty if nothing is hidden from it.
    """

    kind: Kind
    party: str
    sees: str
    epsilon: float | None
    delta: float
    unit: Literal["stream", "epoch", "value"]
    whole_epsilon: float | None
    whole_delta: float
    success_rate: float
    neighbors: str
    assumes: str
    basis: Literal["exact", "bound"]


def party_guarantees(job: Job, law: Law) -> tuple[PartyGuarantee, ...]:
    """Return the guarantee against each party in a job, from readers to holders of values.

    >>> from dpstream.pipeline.jobs.job_files import parse_job
    >>> job = parse_job('''
    ... name: votes
    ... protocol: single_message
    ... parameters: {epsilon: 1, delta: 1.0e-6, domain: [a, b]}
    ... epochs: {count: 1}
    ... shuffle: {minimum: 10000}
    ... ''')
    >>> for each in party_guarantees(job, job.calibrate()):
    ...     print(each.party, each.epsilon and round(each.epsilon, 2))
    analyst 1.0
    aggregator 1.0
    shuffler operator 5.47
    broker operator 5.47
    producer or gateway None
    """
    return tuple(_Parties(job, law).all())


class _Parties:
    def __init__(self, job: Job, law: Law) -> None:
        self._job, self._law, self._entry = job, law, job.protocol_entry
        self._central = job.guarantee_of(law)
        shuffling = self._entry.shuffling
        self._apart = self._central if shuffling is None else shuffling.without_shuffling(law)
        self._epochs = job.epochs.count

    def all(self) -> Iterator[PartyGuarantee]:
        job = self._job
        central = self._central
        yield self._with("analyst", "analyst", "published estimates", central, _assumed(central))
        shuffled = self._if_shuffled()
        if shuffled is not None:
            sees = "published estimates, shuffled messages"
            yield self._row("analyst", "analyst, if shuffled", sees, shuffled, shuffled.trust)
        yield self._aggregator()
        yield self._stage()
        yield self._broker()
        if job.devices is not None:
            yield self._collector()
        else:
            sees, trusted = "values, before they are randomized", "it runs where the values are"
            yield self._row(
                "producer", "producer or gateway", sees, None, f"it is trusted: {trusted}"
            )

    def _if_shuffled(self) -> Guarantee | None:
        if self._entry.shuffling is not None:
            return None
        planning, own = self._entry.planning, None
        if planning is not None and self._job.central is None:
            own = planning.if_shuffled(self._law, self._job.shuffle.minimum)
        if own is None:
            own = amplified_streams(self._job, self._central)
        if own is None or own.epsilon > _WORTH_SAYING * self._central.epsilon:
            return None
        return own

    def _aggregator(self) -> PartyGuarantee:
        job, assumed = self._job, _assumed(self._central)
        if job.shared:
            sees = "one share of each sum, which is pseudorandom by itself"
        elif self._entry.stage_sum(self._law) is not None:
            sees = "one noisy sum per window"
        else:
            sees = "shuffled messages, not their senders"
        if job.sealed is not None and not job.shared:
            assumed = f"{assumed}; it does not collude with any shuffler"
        elif job.shared:
            assumed = f"{assumed}; the other aggregator does not collude with it"
        return self._with("aggregator", "aggregator", sees, self._central, assumed)

    def _stage(self) -> PartyGuarantee:
        job, instances = self._job, self._job.shuffle.instances
        name = "shuffler operator" if instances == 1 else f"one of {instances} shuffler operators"
        if job.sealed is not None:
            sees, colludes = (
                "who sends how many sealed messages, cover traffic included",
                "it does not collude with",
            )
            colludes, others = "it does not collude with", "the aggregator"
            if job.shared:
                sees, others = "which producers sent a sealed table", "both aggregators"
            elif job.route.hops:
                colludes = "not all shufflers collude with"
            assumes = f"{self._replacing}{colludes} {others}, and encryption holds"
            return self._with("stage", name, sees, self._central, self._and_published(assumes))
        sees = "every message, and which producer sent it"
        if instances > 1:
            sees = f"1/{instances} of the messages on average, and which producer sent them"
        if self._entry.stage_adds_noise(self._law):
            sees = f"{sees}; it adds the noise itself"
        if job.crowds is not None:
            sees = f"{sees}, and the crowd of each message"
        return self._raw("stage", name, sees)

    def _broker(self) -> PartyGuarantee:
        job = self._job
        if job.sealed is not None or (job.devices is not None and job.devices.seal):
            sees = "who sends sealed messages and when, and partial sums"
            assumes = "it does not collude with any holder of a key, and encryption holds"
            assumes = self._and_published(f"{self._replacing}{assumes}")
            return self._with("broker", "broker operator", sees, self._central, assumes)
        sees = "all topics: every message, and which producer sent it"
        return self._raw("broker", "broker operator", sees)

    def _collector(self) -> PartyGuarantee:
        devices = self._job.devices
        assert devices is not None
        if devices.seal:
            sees, assumes = "who reports and when; reports are sealed", "the shuffler operator"
            assumes = f"it {_PASSES_ON}; it does not collude with {assumes}, and encryption holds"
            assumes = self._and_published(assumes)
            return self._with("collector", "collector", sees, self._central, assumes)
        return self._raw("collector", "collector", "every report, and which device sends it")

    @property
    def _replacing(self) -> str:
        return "" if self._job.added_by_each(self._law) else f"it {_PASSES_ON}; "

    def _and_published(self, assumes: str) -> str:
        assumed = _assumed(self._central)
        return assumes if assumed == NO_ASSUMPTIONS else f"{assumes}; {assumed}"

    def _raw(self, kind: Kind, party: str, sees: str) -> PartyGuarantee:
        if self._apart is None:
            return self._row(kind, party, sees, None, "it is trusted: nothing is hidden from it")
        return self._row(kind, party, sees, self._apart, NO_ASSUMPTIONS)

    def _with(
        self, kind: Kind, party: str, sees: str, guarantee: Guarantee, assumes: str
    ) -> PartyGuarantee:
        assumes = assumes if self._entry.shuffling is not None else NO_ASSUMPTIONS
        return self._row(kind, party, sees, guarantee, assumes)

    def _row(
        self, kind: Kind, party: str, sees: str, guarantee: Guarantee | None, assumes: str
    ) -> PartyGuarantee:
        if guarantee is None:
            return PartyGuarantee(
                kind, party, sees, None, 0.0, "stream", None, 0.0, 1.0, "", assumes, "exact"
            )
        whole, delta = whole_loss(guarantee, self._epochs)
        return PartyGuarantee(
            kind=kind,
            party=party,
            sees=sees,
            epsilon=guarantee.epsilon,
            delta=guarantee.delta,
            unit=guarantee.unit,
            whole_epsilon=whole,
            whole_delta=delta,
            success_rate=attack_success_rate(whole, delta),
            neighbors=guarantee.neighbors,
            assumes=assumes,
            basis=guarantee.basis,
        )


def amplified_streams(job: Job, local: Guarantee) -> Guarantee | None:
    """Return the whole-stream guarantee that shuffling amplifies; None without such a guarantee.

    A stream counts as one message of a locally private randomizer. The shuffled reports of each
    epoch can be computed from streams that were shuffled as a whole, so one bound covers all epochs
    (`whole_streams`). Delta is that of the job's `central`, or else `DELTA`; `local` is the
    guarantee without trust.
    """
    shuffled, minimum = local.shuffled, job.shuffle.minimum
    if shuffled is None:
        if not job.protocol_entry.loss_of_streams:
            return None
        epsilon = _epsilon_of_streams(local.epsilon, minimum, DELTA)
        shuffled = ShuffledStreams(epsilon, DELTA, minimum)
    epsilon, delta = shuffled.epsilon, shuffled.delta
    return replace(local, epsilon=epsilon, delta=delta, trust=shuffled.trust, basis="bound")


def whole_loss(guarantee: Guarantee, epochs: int) -> tuple[float, float]:
    """Return epsilon and delta for everything a user does in a horizon, rounded up.

    >>> one = Guarantee(0.5, 1e-6, "epoch", "any two items", "none", "exact")
    >>> whole_loss(one, 3)
    (1.5000000000000002, 3.0000000000000005e-06)
    """
    if guarantee.unit != "epoch" or epochs == 1:
        return guarantee.stream_epsilon or guarantee.epsilon, guarantee.delta
    if guarantee.stream_epsilon is not None:
        return guarantee.stream_epsilon, guarantee.delta
    return (
        math.nextafter(epochs * guarantee.epsilon, math.inf),
        min(1.0, math.nextafter(epochs * guarantee.delta, 1)) if guarantee.delta else 0.0,
    )


NO_ASSUMPTIONS = (
    "no trust in others; holds even if all of these collude, as long as devices and gateways keep "
    "their draws secret"
)
"""`PartyGuarantee.assumes` for a guarantee without a trusted party."""
_PASSES_ON = "passes on every report and none of its own"


def _assumed(guarantee: Guarantee) -> str:
    trust = guarantee.trust
    if needs_no_trust(trust):
        return NO_ASSUMPTIONS
    for further in ("; against a shuffler", "; the messages alone", "; no shuffler reads"):
        trust = trust.partition(further)[0]
    return trust
