"""What a server that writes requests to Kafka tells Prometheus: counts by job and reason.

No sender, address or epoch is in it. What is counted of a job, and in which words, is for each kind
of server to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.kafka.workers.registries import registry_with


class RefusedRequests(Protocol):
    """What has become of the requests for a job."""

    @property
    def refused(self) -> Mapping[str, int]:
        """How many were refused, by reason."""
        ...


CountsT = TypeVar("CountsT", bound=RefusedRequests)


@dataclass(frozen=True, slots=True)
class ServerSnapshot(Generic[CountsT]):
    """A server at a moment.

    Attributes:
        ready: whether it takes what it is for.
        kafka_answers: whether Kafka acknowledges, as far as is known.
        connections: that are open.
        waiting: requests that wait for their answer.
        refused: requests that concern no job, by reason.
        jobs: by name.
    """

    ready: bool = False
    kafka_answers: bool = False
    connections: int = 0
    waiting: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    jobs: Mapping[str, CountsT] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wording:
    """How metrics of one kind of server are named, and what they are said to be.

    Attributes:
        prefix: what their names begin with.
        ready: help of ``ready``.
        broker_reachable: help of that.
        counters: by name, which attribute of the counts of a job it tells, and its help; where that
            is None, nothing is told of the job.
        refused_requests: help of that.
    """

    prefix: str
    ready: str
    broker_reachable: str
    counters: Mapping[str, tuple[str, str]]
    refused_requests: str


def metric_families(snapshot: ServerSnapshot[CountsT], wording: Wording) -> Iterator[Metric]:
    """The metrics of a server."""
    gauges = {
        "ready": (snapshot.ready, wording.ready),
        "broker_reachable": (snapshot.kafka_answers, wording.broker_reachable),
        "connections": (snapshot.connections, "Connections that are open."),
        "waiting_requests": (snapshot.waiting, "Requests that wait for Kafka."),
    }
    for name, (value, text) in gauges.items():
        yield GaugeMetricFamily(wording.prefix + name, text, value=float(value))
    for name, (attribute, text) in wording.counters.items():
        family = CounterMetricFamily(wording.prefix + name, text, labels=["dpstream_job"])
        for job, counts in snapshot.jobs.items():
            count = getattr(counts, attribute)
            if count is not None:
                family.add_metric([job], count)
        yield family
    family = CounterMetricFamily(
        wording.prefix + "refused_requests",
        wording.refused_requests,
        labels=["dpstream_job", "reason"],
    )
    for reason, count in snapshot.refused.items():
        family.add_metric(["", reason], count)
    for job, counts in snapshot.jobs.items():
        for reason, count in counts.refused.items():
            family.add_metric([job, reason], count)
    yield family


def registry_of(
    snapshot: Callable[[], ServerSnapshot[CountsT]], wording: Wording
) -> CollectorRegistry:
    """Metrics of a server, from `snapshot`, which any thread may call, and of its process."""
    return registry_with(lambda: metric_families(snapshot(), wording), process="dpstream")
