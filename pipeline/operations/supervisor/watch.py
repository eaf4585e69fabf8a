"""Serve the metrics and health of all workers of a supervisor at one address.

A worker that does not answer is unhealthy, and is missing from the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dpstream.pipeline.kafka.workers.watchdog import Health

_ANSWER_SECONDS = 2.0
_AT_ONCE = 16
# A worker does not answer immediately after its start.
_STARTING_SECONDS = 60.0
# The supervisor's loop runs several times a second.
_LOOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The worker of a job, started at `since` (monotonic seconds).

    `port` is its metrics port on 127.0.0.1; None if the worker is not running. `idle_metrics`
    contains the last Prometheus metrics of an idle worker.
    """

    job: str
    port: int | None
    since: float
    idle_metrics: str | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """State of a supervisor; `informed` is True once the jobs topic was read to its end."""

    at: float
    stage: str
    workers: tuple[Watched, ...] = ()
    informed: bool = False
    broker_answers: bool = False


Ask = Callable[[int, str], tuple[int, str] | None]


def ask(port: int, path: str) -> tuple[int, str] | None:
    # Avoid urllib, which might use a configured proxy.
    connection = HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()


def liveness(view: View, now: float, ask: Ask = ask) -> Health:
    if now - view.at > _LOOP_SECONDS:
        return Health(False, f"the supervisor has been blocked for {now - view.at:.0f} s")
    starting = {each.job for each in view.workers if now - each.since <= _STARTING_SECONDS}
    waiting = [each for each in view.workers if each.port is None and each.idle_metrics is None]
    more = f", {len(waiting)} waiting for restart" if waiting else ""
    faults = list(_faults(view.workers, "/healthz", ask, starting))
    return Health(not faults, "; ".join(faults) or f"alive, workers: {_counted(view)}{more}")


def readiness(view: View, now: float, ask: Ask = ask) -> Health:
    if now - view.at > _LOOP_SECONDS:
        return liveness(view, now, ask)
    if not view.informed:
        return Health(False, "the jobs topic has not been read yet")
    if not view.broker_answers:
        return Health(False, "the broker is unreachable")
    waiting = [each for each in view.workers if each.port is None and each.idle_metrics is None]
    faults = [f"the worker of job {worker.job} is not running" for worker in waiting]
    faults += _faults(view.workers, "/readyz", ask)
    return Health(not faults, "; ".join(faults) or f"ready, workers: {_counted(view)}")


def _faults(
    workers: Iterable[Watched], path: str, ask: Ask, excused: Container[str] = ()
) -> Iterator[str]:
    for job, answer in _ask_all(workers, path, ask):
        if answer is None and job not in excused:
            yield f"the worker of job {job} does not answer"
        elif answer is not None and answer[0] != 200:
            yield f"job {job}: {answer[1].strip()}"


def _counted(view: View) -> str:
    idle = sum(worker.idle_metrics is not None for worker in view.workers)
    running = sum(worker.port is not None for worker in view.workers)
    return f"{running}{f', {idle} idle' if idle else ''}"


def merge(scrapes: Iterable[tuple[str, Iterable[Metric]]], stage: str) -> Iterator[Metric]:
    """Merge workers' metrics into those of one process, with labels for job and stage."""
    merged: dict[str, Metric] = {}
    for job, families in scrapes:
        for family in families:
            into = merged.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            # During an upgrade, two versions of workers might disagree about the type.
            if into.type != family.type:
                continue
            for sample in family.samples:
                named = not sample.name.startswith("dpstream_") or "dpstream_job" in sample.labels
                labels = (
                    sample.labels
                    if named
                    else {"dpstream_job": job, "stage": stage, **sample.labels}
                )
                into.add_sample(sample.name, labels, sample.value)
    yield from merged.values()


class _Supervised(Collector):
    def __init__(self, look: Callable[[], View], ask: Ask) -> None:
        self._look = look
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        view = self._look()
        jobs = GaugeMetricFamily(
            "dpstream_supervised_jobs",
            "Jobs that have a worker under this supervisor.",
            labels=["stage"],
        )
        jobs.add_metric([view.stage], len(view.workers))
        restarts = CounterMetricFamily(
            "dpstream_worker_restarts",
            "Workers that exited unexpectedly and were restarted.",
            labels=["dpstream_job", "stage"],
        )
        idle = GaugeMetricFamily(
            "dpstream_worker_idle",
            "1 if the worker is idle: it was stopped, and is started on demand.",
            labels=["dpstream_job", "stage"],
        )
        for worker in view.workers:
            restarts.add_metric([worker.job, view.stage], worker.restarts)
            idle.add_metric([worker.job, view.stage], worker.idle_metrics is not None)
        yield from (jobs, restarts, idle)
        scrapes = [
            (job, answer[1])
            for job, answer in _ask_all(view.workers, "/metrics", self._ask)
            if answer is not None and answer[0] == 200
        ]
        # An idle worker's last metrics are still valid: no record has arrived since.
        scrapes += [
            (worker.job, worker.idle_metrics) for worker in view.workers if worker.idle_metrics
        ]
        families = ((job, text_string_to_metric_families(text)) for job, text in scrapes)
        yield from merge(families, view.stage)


def registry_of(look: Callable[[], View], ask: Ask = ask) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Supervised(look, ask))
    ProcessCollector(namespace="dpstream_supervisor", registry=registry)
    return registry


def _ask_all(
    workers: Iterable[Watched], path: str, ask: Ask
) -> list[tuple[str, tuple[int, str] | None]]:
    ports = {worker.job: worker.port for worker in workers if worker.port is not None}
    if not ports:
        return []
    with ThreadPoolExecutor(min(len(ports), _AT_ONCE)) as pool:
        return list(zip(ports, pool.map(lambda port: ask(port, path), ports.values()), strict=True))
