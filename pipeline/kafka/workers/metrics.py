"""A worker's Prometheus metrics: a pure function of a snapshot of the worker.

* Metric names have a prefix and base units; counters end in ``_total`` and reset with the process.
* Label values are few: the job, the stage, partitions, window statuses, rejection reasons, and some
  items or measures and attributes. Users, producers, batches and epochs are never labels.
* The job's label is ``dpstream_job``, since Prometheus uses ``job`` and ``instance`` for its
  targets. Consumer lag has the names and labels of kafka-lag-exporter.
* In some jobs, devices rely on the shuffler to hide how many messages they send
  (`WorkerSnapshot.hides_messages`). There, no metric counts messages or records of the raw topic
  before the noise is added. Devices, whose number is not secret, are counted instead, and lag is
  reported only in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dpstream.pipeline.kafka.workers.worker_facts import JobFacts, PublishedNumber, PublishedNumbers
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.records import Reason


class _Families(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def registry_with(
    families: Callable[[], Iterator[Metric]], process: str | None = None
) -> CollectorRegistry:
    """Return a registry of thread-safe `families`, and with `process`, metrics of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    if process is not None:
        ProcessCollector(namespace=process, registry=registry)
    return registry


_PREFIX = "dpstream_"

_Gauges: TypeAlias = Mapping[str, tuple[str, Callable[[PublishedNumber], float | None]]]
"""Descriptions and values of gauges, by the end of their names."""


@dataclass(frozen=True, slots=True)
class Lag:
    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """State of a worker at one moment.

    Attributes:
        hides_messages: True if the stage's message counts are secret.
        restored: True if the worker's partitions are assigned and restored.
        last_window_at: Time of the last finished window, in seconds since 1970.
        window_seconds: Total processing time of all finished windows.
        clock_ahead: Seconds by which this machine's clock is ahead of the broker's, if known.
    """

    job: str
    stage: str
    group: str
    topic: str
    hides_messages: bool
    restored: bool = False
    broker_answers: bool = False
    partitions: int = 0
    records: int = 0
    lag: Mapping[int, Lag] = field(default_factory=dict)
    heartbeat: Mapping[str, Any] = field(default_factory=dict)
    windows: Mapping[WindowStatus, int] = field(default_factory=dict)
    last_epoch: int | None = None
    last_window_at: float | None = None
    window_seconds: float = 0.0
    facts: JobFacts | None = None
    estimates: PublishedNumbers | None = None
    clock_ahead: float | None = None


def metric_families(snapshot: WorkerSnapshot) -> Iterator[Metric]:
    own = {"dpstream_job": snapshot.job, "stage": snapshot.stage}
    counts: Mapping[str, int] = snapshot.heartbeat.get("counts", {})

    def gauge(name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, text, labels=list(own))
        family.add_metric(list(own.values()), value)
        return family

    def counter(
        name: str, text: str, values: float | Mapping[str, float], label: str = ""
    ) -> Metric:
        names = [*own, label] if label else list(own)
        family = CounterMetricFamily(_PREFIX + name, text, labels=names)
        if isinstance(values, Mapping):
            for key, value in values.items():
                family.add_metric([*own.values(), key], value)
        else:
            family.add_metric(list(own.values()), values)
        return family

    yield gauge("worker_ready", "1 if partitions are assigned and restored.", snapshot.restored)
    yield gauge("broker_reachable", "1 if the broker answered recently.", snapshot.broker_answers)
    yield gauge("partitions_assigned", "Partitions assigned to this worker.", snapshot.partitions)
    if snapshot.clock_ahead is not None:
        text = "Seconds by which this machine's clock is ahead of the broker's; negative if behind."
        yield gauge("clock_ahead_seconds", text, snapshot.clock_ahead)
    if "ahead" in snapshot.heartbeat:
        ahead = snapshot.heartbeat["ahead"]
        text = "Producers that send epochs ahead of time; at most 8 are counted."
        yield gauge("producers_ahead", text, len(ahead))
        text = "Epochs by which the most advanced producer is ahead of time."
        yield gauge("epochs_ahead", text, max((each["epochs"] for each in ahead), default=0))
    if "open_windows" in snapshot.heartbeat:
        yield gauge(
            "open_windows", "Windows that are not finished.", snapshot.heartbeat["open_windows"]
        )
    yield counter(
        "windows",
        "Windows that this worker finished, by status.",
        {
            window_status.value: snapshot.windows.get(window_status, 0)
            for window_status in WindowStatus
        },
        "status",
    )
    yield counter(
        "window_seconds", "Total duration of finished windows in seconds.", snapshot.window_seconds
    )
    if snapshot.last_epoch is not None and snapshot.last_window_at is not None:
        yield gauge("last_epoch", "Highest epoch of a finished window.", snapshot.last_epoch)
        yield gauge(
            "last_window_timestamp_seconds",
            "Time when the latest window was finished.",
            snapshot.last_window_at,
        )
    yield counter(
        "dead_letters",
        "Rejected records, by reason.",
        {reason.value: counts.get(f"dead letters {reason.value}", 0) for reason in Reason},
        "reason",
    )
    if snapshot.hides_messages:
        yield counter(
            "contributors", "Devices whose producer closed an epoch.", counts.get("reports", 0)
        )
        yield counter(
            "late_contributors",
            "Devices whose reports arrived after their epoch was finalized.",
            counts.get("late_reports", 0),
        )
    else:
        yield counter("records_read", "Records read from the stage's topic.", snapshot.records)
        if snapshot.stage != "publish":
            yield counter("reports", "Reports in records read.", counts.get("reports", 0))
        if snapshot.stage == "shuffle":
            yield counter(
                "late_reports",
                "Reports that arrived after their epoch was finalized.",
                counts.get("late_reports", 0),
            )
            yield counter("duplicate_records", "Duplicate records.", counts.get("duplicates", 0))
    if "contradicting_reports" in counts:
        yield counter(
            "contradicting_reports",
            "Reports that differ from an earlier report by the same device for the same epoch.",
            counts["contradicting_reports"],
        )
    if snapshot.facts is not None:
        yield from _facts(snapshot.facts, own)
    if snapshot.estimates is not None:
        yield from _estimates(snapshot.estimates, own)
    yield from _lag(snapshot)


def _facts(facts: JobFacts, own: Mapping[str, str]) -> Iterator[Metric]:
    gauges = {
        "grace_seconds": (facts.grace_seconds, "Grace period of a window in seconds."),
        "minimum_contributors": (facts.minimum, "Minimum number of devices in a released window."),
        "epoch_seconds": (facts.epoch_seconds, "Length of an epoch in seconds."),
    }
    for name, (value, text) in gauges.items():
        if value is not None:
            family = GaugeMetricFamily(_PREFIX + name, text, labels=list(own))
            family.add_metric(list(own.values()), value)
            yield family
    for name in ("epsilon", "delta"):
        text = f"The {name} of the job's guarantee, by the unit that it covers."
        family = GaugeMetricFamily(_PREFIX + name, text, labels=[*own, "unit"])
        family.add_metric([*own.values(), facts.unit], getattr(facts, name))
        yield family


def _estimates(published: PublishedNumbers, own: Mapping[str, str]) -> Iterator[Metric]:
    text = "Epoch of the latest published estimate."
    epoch = GaugeMetricFamily(f"{_PREFIX}estimate_epoch", text, labels=list(own))
    epoch.add_metric(list(own.values()), published.epoch)
    yield epoch
    numbers: _Gauges = {
        "": ("Estimate for an item in that epoch.", lambda each: each.value),
        **_bounds("", lambda each: each.interval),
        "_change": ("Difference from the previous estimate.", lambda each: each.change),
        **_bounds("_change", lambda each: each.change_interval),
    }
    yield from _gauges("estimate", numbers, published.numbers, own)
    if published.ratios:
        text = (
            "Ratio that the job file declares. Do not divide estimates in PromQL: the quotient of "
            "two intervals is not the interval of the ratio."
        )
        ratios: _Gauges = {"": (text, lambda each: each.value)}
        ratios = {**ratios, **_bounds("", lambda each: each.interval)}
        yield from _gauges("ratio", ratios, published.ratios, own)


def _bounds(
    of: str, interval_of: Callable[[PublishedNumber], tuple[float, float] | None]
) -> _Gauges:
    words = " of the change" if of else ""
    return {
        f"{of}_ci95_low": (
            f"Lower 95 % confidence limit{words}.",
            lambda each: _end(interval_of(each), 0),
        ),
        f"{of}_ci95_high": (
            f"Upper 95 % confidence limit{words}.",
            lambda each: _end(interval_of(each), 1),
        ),
    }


def _gauges(
    prefix: str, gauges: _Gauges, numbers: Sequence[PublishedNumber], own: Mapping[str, str]
) -> Iterator[Metric]:
    for name, (text, value_of) in gauges.items():
        family = Metric(f"{_PREFIX}{prefix}{name}", text, "gauge")
        for number in numbers:
            value = value_of(number)
            if value is not None:
                family.add_sample(family.name, {**own, **number.labels}, value)
        yield family


def _end(interval: tuple[float, float] | None, place: int) -> float | None:
    return None if interval is None else interval[place]


def _lag(snapshot: WorkerSnapshot) -> Iterator[Metric]:
    labels = ["group", "topic", "partition"]
    seconds = GaugeMetricFamily(
        "kafka_consumergroup_group_lag_seconds",
        "Age of the oldest uncommitted record in seconds; after a restart, a lower bound.",
        labels=labels,
    )
    records = GaugeMetricFamily(
        "kafka_consumergroup_group_lag", "Uncommitted records.", labels=labels
    )
    for partition, lag in sorted(snapshot.lag.items()):
        own = [snapshot.group, snapshot.topic, str(partition)]
        seconds.add_metric(own, lag.seconds)
        records.add_metric(own, lag.records)
    yield seconds
    if not snapshot.hides_messages:
        yield records


def metrics_text(snapshot: WorkerSnapshot) -> str:
    return generate_latest(registry_with(lambda: metric_families(snapshot))).decode()


def registry_of(snapshot: Callable[[], WorkerSnapshot]) -> CollectorRegistry:
    return registry_with(lambda: metric_families(snapshot()), process="dpstream")
