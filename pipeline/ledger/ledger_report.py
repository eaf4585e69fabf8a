"""Join a cluster's ledger with the running deployments and the releases.

A longitudinal stream is charged once for all epochs of a horizon. The ledger charges the local
loss, which holds for every user, however the user participates. If a horizon is shuffled, users in
all of its released windows also hide among each other. `StreamTerms.charged` computes the smaller
loss of these users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.pipeline.ledger.releases import Releases, Unbacked, releases_on
from dpstream.pipeline.ledger.spending import Presence, Spending
from dpstream.pipeline.ledger.verification import Inconsistency, PublishedDeployment, verify
from dpstream.pipeline.protocols.protocol import DELTA
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.accounting.whole_streams import Charged, charged_once
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import LEDGER_TOPIC, TopicSettings

_Facts: TypeAlias = tuple[str, int, float | None]
"""Protocol, number of epochs per horizon, and delta of the job file."""


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """Terms of a deployment that charges every stream only once.

    `loss` is the local loss for a user's stream in one horizon of `epochs` epochs. `delta` is the
    delta of the amplified loss.
    """

    loss: float
    epochs: int
    delta: float

    def charged(self, devices: int) -> Charged:
        return charged_once(self.loss, devices, self.delta)


def stream_terms(state: Spending) -> dict[str, StreamTerms]:
    """Return the terms of deployments that charge whole streams, by hexadecimal ID."""
    known = {deployment: facts for deployment, facts in _of_ended_jobs(state) if facts is not None}
    for job in state.topic.jobs.values():
        delta = None if job.central is None else job.central.delta
        known[job.deployment.hex()] = job.protocol, job.epochs.count, delta
    found = {}
    for charge in state.charges:
        protocol, epochs, delta = known.get(charge.deployment, ("", 0, None))
        if protocol in PROTOCOLS and PROTOCOLS[protocol].loss_of_streams:
            found[charge.deployment] = StreamTerms(charge.epsilon, epochs, delta or DELTA)
    return found


def _of_ended_jobs(state: Spending) -> Iterator[tuple[str, _Facts | None]]:
    for entry in state.chain.entries:
        for charge in entry.draft.charges:
            yield charge.deployment, _facts(entry.draft.facts)


def _facts(facts: Mapping[str, Any]) -> _Facts | None:
    try:
        protocol, epochs = facts["protocol"], facts["epochs"]
        delta = facts["guarantee"].get("shuffled", {}).get("delta")
    except (AttributeError, KeyError, TypeError):
        return None
    whole = type(epochs) is int and epochs > 0
    known = delta is None or (isinstance(delta, float) and 0 < delta < 1)
    return (protocol, epochs, delta) if isinstance(protocol, str) and whole and known else None


@dataclass(frozen=True)
class LedgerReport:
    """The ledger and related data, read from a cluster.

    `settings` are those of the ledger's topic; None if it does not exist. `releases` and `terms`
    are by deployment in hexadecimal; `terms` has only deployments that charge whole streams.
    """

    state: Spending
    settings: TopicSettings | None
    first_offset: int
    releases: dict[str, Releases]
    terms: dict[str, StreamTerms]

    def findings(self, kept: str | None = None) -> list[Inconsistency]:
        """Return all inconsistencies; `kept` is an earlier head of the ledger, stored elsewhere."""
        published = {
            deployment: PublishedDeployment(
                each.job, each.since, [(_unbacked(one), one.written) for one in each.unbacked]
            )
            for deployment, each in self.releases.items()
            if each.since is not None
        }
        return verify(
            self.state,
            self.settings,
            first_offset=self.first_offset,
            kept=kept,
            published=published,
        )

    def streams_of(self, deployment: str) -> list[StreamCharge]:
        """Return a deployment's whole-stream charges by horizon; `deployment` is in hexadecimal."""
        terms, releases = self.terms.get(deployment), self.releases.get(deployment)
        if terms is None or releases is None:
            return []
        return [
            StreamCharge(horizon, present, terms.charged(present.devices))
            for horizon, present in sorted(releases.present.items())
        ]

    def deployment_status(self, charge: Charge) -> str:
        runs = self.state.topic.jobs.get(charge.job)
        if runs is not None and runs.deployment.hex() == charge.deployment:
            return "deployed"
        if charge.deployment in self._with_receipt or charge.deployment in self.releases:
            return "ended"
        return "charged, never deployed"

    @cached_property
    def _with_receipt(self) -> set[str]:
        return {each.about for each in self.state.topic.receipts}


@dataclass(frozen=True, slots=True)
class StreamCharge:
    """Current charge to a job's users for their whole streams in `horizon`, numbered from 1.

    `present` counts the participants in all released windows. `charged` has the charges to these
    users and to all other users.
    """

    horizon: int
    present: Presence
    charged: Charged

    def to_json(self) -> dict[str, Any]:
        return {
            "horizon": self.horizon,
            "windows": self.present.windows,
            "devices": self.present.devices,
            "producers": self.present.producers,
            "epsilon": self.charged.epsilon,
            "delta": self.charged.delta,
            "other_producers": self.present.other_producers,
            "other_epsilon": self.charged.others,
        }


def report_on(cluster: Cluster, jobs: Sequence[str] | None = None) -> LedgerReport:
    """Read the ledger and the releases of `jobs`; None means all charged or deployed jobs."""
    state = read_spending(cluster)
    settings = cluster.existing_topics([LEDGER_TOPIC]).get(LEDGER_TOPIC)
    first = 0 if settings is None else cluster.start_offsets(LEDGER_TOPIC)[0]
    if jobs is None:
        jobs = [*state.topic.jobs, *(charge.job for charge in state.charges)]
    terms = stream_terms(state)
    horizons = {deployment: each.epochs for deployment, each in terms.items()}
    return LedgerReport(state, settings, first, releases_on(cluster, jobs, horizons), terms)


def _unbacked(estimate: Unbacked) -> str:
    which = f"the estimate of epoch {estimate.epoch:,}, at offset {estimate.offset:,} of its topic,"
    if estimate.manifest is None:
        return f"{which} has no manifest: its window was not finalized"
    return f"{which} is published, but its manifest states {estimate.manifest.value}"


def released_in_words(releases: Releases) -> str:
    order = (WindowStatus.RELEASED, WindowStatus.SUPPRESSED, WindowStatus.EMPTY)
    counted = [
        f"{releases.windows_by_status[window_status]:,} {window_status.value}"
        for window_status in order
        if window_status in releases.windows_by_status
    ]
    return ", ".join(counted) or "none finalized"
