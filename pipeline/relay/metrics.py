"""What a relay tells Prometheus: counts by job and reason, no gateway, address or epoch.

Of jobs whose devices rely on the shuffle stage to hide how many messages they send, requests alone
are counted, and nothing of the raw topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry

from pipeline.collector import server_metrics
from pipeline.collector.server_metrics import ServerSnapshot, Wording

_WORDING: Final = Wording(
    prefix="dpstream_relay_",
    ready="1 if it takes records.",
    broker_reachable="1 if Kafka takes records.",
    counters={
        "received_requests": ("received", "Requests whose records were looked at."),
        "acknowledged_requests": ("acknowledged", "Requests whose records are in Kafka."),
        "records": ("records", "Records of gateways that were bundled."),
        "bundles": ("bundles", "Records written to Kafka."),
    },
    refused_requests=(
        "Requests that were refused, by reason; of no job if none was named that is taken."
    ),
)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """What has become of the requests for a job, since the relay was started.

    Attributes:
        received: requests whose records were looked at.
        acknowledged: requests that are in Kafka.
        refused: requests, by reason.
        records: of gateways, in what was to be written; None where they are not for all to see.
        bundles: records of Kafka's that these are in; None likewise.
    """

    received: int
    acknowledged: int
    refused: Mapping[str, int]
    records: int | None = None
    bundles: int | None = None


RelaySnapshot: TypeAlias = ServerSnapshot[JobCounts]


def registry_of(snapshot: Callable[[], RelaySnapshot]) -> CollectorRegistry:
    """Metrics of a relay, from `snapshot`, which any thread may call, and of its process."""
    return server_metrics.registry_of(snapshot, _WORDING)
