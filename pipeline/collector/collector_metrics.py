"""A collector's Prometheus metrics: counts by job and reason, never by device, address or epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dpstream.pipeline.kafka.workers.metrics import registry_with

_PREFIX = "dpstream_collector_"


@dataclass(frozen=True, slots=True)
class JobCounts:
    received: int
    acknowledged: int
    records: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CollectorSnapshot:
    """State of a collector; `rejected` counts, by reason, rejected requests without a job."""

    ready: bool = False
    kafka_answers: bool = False
    connections: int = 0
    waiting: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, JobCounts] = field(default_factory=dict)


def metric_families(snapshot: CollectorSnapshot) -> Iterator[Metric]:
    gauges = {
        "ready": (snapshot.ready, "1 if it receives reports."),
        "broker_reachable": (snapshot.kafka_answers, "1 if Kafka answered recently."),
        "connections": (snapshot.connections, "Open connections."),
        "waiting_requests": (snapshot.waiting, "Requests waiting for Kafka."),
    }
    for name, (value, text) in gauges.items():
        yield GaugeMetricFamily(_PREFIX + name, text, value=float(value))
    counters = {
        "received_reports": "Reports in examined request bodies.",
        "acknowledged_reports": "Reports stored in Kafka.",
        "records": "Records written to Kafka.",
    }
    for name, text in counters.items():
        family = CounterMetricFamily(_PREFIX + name, text, labels=["dpstream_job"])
        for job, counts in snapshot.jobs.items():
            family.add_metric([job], getattr(counts, name.removesuffix("_reports")))
        yield family
    text = "Rejected requests, by reason; without a job label if the request names no known job."
    family = CounterMetricFamily(
        _PREFIX + "rejected_requests", text, labels=["dpstream_job", "reason"]
    )
    for reason, count in snapshot.rejected.items():
        family.add_metric(["", reason], count)
    for job, counts in snapshot.jobs.items():
        for reason, count in counts.rejected.items():
            family.add_metric([job, reason], count)
    yield family


def registry_of(snapshot: Callable[[], CollectorSnapshot]) -> CollectorRegistry:
    return registry_with(lambda: metric_families(snapshot()), process="dpstream")
