"""What the ledger of a cluster says, joined to what runs there and what was released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.ledger_topic import read_spending
from dpstream.pipeline.ledger.presence import Presence
from dpstream.pipeline.ledger.releases import Releases, Unbacked, releases_on
from dpstream.pipeline.ledger.spending import Spending
from dpstream.pipeline.ledger.verification import Finding, Published, verify
from dpstream.pipeline.ledger.whole_streams import StreamTerms, stream_terms
from dpstream.randomizers.accounting.whole_streams import Charged
from dpstream.topics.manifests import Fate
from dpstream.topics.names import LEDGER_TOPIC, TopicSettings


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

    def findings(self, kept: str | None = None) -> list[Finding]:
        """Everything that is inconsistent; `kept` is a head that somebody has kept."""
        published = {
            deployment: Published(
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
