"""What a collector tells Prometheus: counts by job and reason, no device, address or epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry

from pipeline.collector import server_metrics
from pipeline.collector.server_metrics import ServerSnapshot, Wording

_WORDING: Final = Wording(
    prefix="dpstream_collector_",
    ready="1 if it takes reports.",
    broker_reachable="1 if Kafka answered lately.",
    counters={
        "received_reports": ("received", "Reports in bodies that were looked at."),
        "acknowledged_reports": ("acknowledged", "Reports that are in Kafka."),
        "records": ("records", "Records written to Kafka."),
    },
    refused_requests=(
        "Requests that were refused, by reason; of no job if none was named that is known."
    ),
)


@dataclass(frozen=True, slots=True)
class JobCounts:
    """What has become of the reports of a job, since the collector was started.

    Attributes:
        received: reports in bodies that were looked at.
        acknowledged: reports that are in Kafka.
        records: written.
        refused: requests, by reason.
    """

    received: int
    acknowledged: int
    records: int
    refused: Mapping[str, int]


CollectorSnapshot: TypeAlias = ServerSnapshot[JobCounts]


def registry_of(snapshot: Callable[[], CollectorSnapshot]) -> CollectorRegistry:
    """Metrics of a collector, from `snapshot`, which any thread may call, and of its process."""
    return server_metrics.registry_of(snapshot, _WORDING)
