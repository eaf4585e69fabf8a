"""What a relay tells Prometheus: counts by job and reason, no gateway, address or epoch.

Of jobs whose devices rely on the shuffle stage to hide how many messages they send, requests alone
are counted, and nothing of the raw topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_PREFIX = "dpstream_relay_"


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


@dataclass(frozen=True, slots=True)
class RelaySnapshot:
    """A relay at a moment.

    Attributes:
        ready: whether it takes records.
        kafka_answers: whether Kafka takes records, as far as is known.
        connections: that are open.
        waiting: requests that wait for their answer.
        refused: requests that concern no job that is taken, by reason.
        jobs: by name.
    """

    ready: bool = False
    kafka_answers: bool = False
    connections: int = 0
    waiting: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, JobCounts] = field(default_factory=dict)


def metric_families(snapshot: RelaySnapshot) -> Iterator[Metric]:
    """The metrics of a relay."""
    gauges = {
        "ready": (snapshot.ready, "1 if it takes records."),
        "broker_reachable": (snapshot.kafka_answers, "1 if Kafka takes records."),
        "connections": (snapshot.connections, "Connections that are open."),
        "waiting_requests": (snapshot.waiting, "Requests that wait for Kafka."),
    }
    for name, (value, text) in gauges.items():
        yield GaugeMetricFamily(_PREFIX + name, text, value=float(value))
    counters = {
        "received_requests": ("received", "Requests whose records were looked at."),
        "acknowledged_requests": ("acknowledged", "Requests whose records are in Kafka."),
        "records": ("records", "Records of gateways that were bundled."),
        "bundles": ("bundles", "Records written to Kafka."),
    }
    for name, (attribute, text) in counters.items():
        family = CounterMetricFamily(_PREFIX + name, text, labels=["dpstream_job"])
        for job, counts in snapshot.jobs.items():
            count = getattr(counts, attribute)
            if count is not None:
                family.add_metric([job], count)
        yield family
    text = "Requests that were refused, by reason; of no job if none was named that is taken."
    family = CounterMetricFamily(
        _PREFIX + "refused_requests", text, labels=["dpstream_job", "reason"]
    )
    for reason, count in snapshot.refused.items():
        family.add_metric(["", reason], count)
    for job, counts in snapshot.jobs.items():
        for reason, count in counts.refused.items():
            family.add_metric([job, reason], count)
    yield family


class _Relaying(Collector):
    def __init__(self, snapshot: Callable[[], RelaySnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        return metric_families(self._snapshot())


def registry_of(snapshot: Callable[[], RelaySnapshot]) -> CollectorRegistry:
    """Metrics of a relay, from `snapshot`, which any thread may call, and of its process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Relaying(snapshot))
    ProcessCollector(namespace="dpstream", registry=registry)
    return registry
