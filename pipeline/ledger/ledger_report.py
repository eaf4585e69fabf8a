"""What the ledger of a cluster says, joined to what runs there and what was released.

For a longitudinal stream, which is charged once for all epochs, the ledger charges people the local
loss, which holds for everybody whatever they missed. Whoever was in every released window of a
horizon is hidden by all others who were, once that the windows were shuffled: how well, `charged`
says.
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
from dpstream.topics.manifests import Fate
from dpstream.topics.names import LEDGER_TOPIC, TopicSettings

_Facts: TypeAlias = tuple[str, int, float | None]
"""A protocol, the epochs of a horizon, and the delta that the job states."""


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """On what terms the streams of a deployment are charged once.

    Attributes:
        loss: the local one, of a user's stream in one horizon.
        epochs: of a horizon.
        delta: that the amplified figure is stated with.
    """

    loss: float
    epochs: int
    delta: float

    def charged(self, devices: int) -> Charged:
        """What is charged for a horizon.

        Args:
            devices: that are known to have been in every released window of it.
        """
        return charged_once(self.loss, devices, self.delta)


def stream_terms(state: Spending) -> dict[str, StreamTerms]:
    """Of every deployment whose devices lose what they lose by whole streams, in hexadecimal."""
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
        for charge in entry.said.charges:
            yield charge.deployment, _facts(entry.said.facts)


def _facts(said: Mapping[str, Any]) -> _Facts | None:
    try:
        protocol, epochs = said["protocol"], said["epochs"]
        delta = said["guarantee"].get("shuffled", {}).get("delta")
    except (AttributeError, KeyError, TypeError):
        return None
    whole = type(epochs) is int and epochs > 0
    known = delta is None or (isinstance(delta, float) and 0 < delta < 1)
    return (protocol, epochs, delta) if isinstance(protocol, str) and whole and known else None


@dataclass(frozen=True)
class LedgerReport:
    """A ledger, as it was read.

    Attributes:
        state: what it and ``dpstream.jobs`` say.
        settings: of its topic; None where there is none.
        first_offset: of the first record that is left.
        releases: by deployment in hexadecimal.
        terms: on which whole streams are charged once, by deployment where there are such.
    """

    state: Spending
    settings: TopicSettings | None
    first_offset: int
    releases: dict[str, Releases]
    terms: dict[str, StreamTerms]

    def findings(self, kept: str | None = None) -> list[Inconsistency]:
        """Everything that is inconsistent; `kept` is a head that somebody has kept."""
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
        """What whole streams are charged by a deployment, in hexadecimal, horizon by horizon."""
        terms, releases = self.terms.get(deployment), self.releases.get(deployment)
        if terms is None or releases is None:
            return []
        return [
            StreamCharge(horizon, present, terms.charged(present.devices))
            for horizon, present in sorted(releases.present.items())
        ]

    def fate(self, charge: Charge) -> str:
        """What has become of a deployment that is charged."""
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
    """What the users of a job are charged for their whole streams in a horizon, so far.

    Attributes:
        horizon: from 1 on.
        present: who was in every window that was released of it.
        charged: what such streams are charged, and all others.
    """

    horizon: int
    present: Presence
    charged: Charged

    def to_json(self) -> dict[str, Any]:
        """The figures, as JSON values."""
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
    """Read the ledger, and what was released by its jobs.

    Args:
        cluster: where.
        jobs: names of those whose releases are read; None for all that are charged or deployed.
    """
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
        return f"{which} has no manifest: no window was decided for it"
    return f"{which} is published, and its manifest says {estimate.manifest.value}"


def released_in_words(releases: Releases) -> str:
    """How many windows were released, and how many were not."""
    order = (Fate.RELEASED, Fate.TOO_SMALL, Fate.EMPTY)
    counted = [f"{releases.fates[fate]:,} {fate.value}" for fate in order if fate in releases.fates]
    return ", ".join(counted) or "none decided"
