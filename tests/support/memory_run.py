"""Complete run in memory through the user commands, with workers running between them.

The clock stands still, and draws depend only on the drawing component, so that two runs with the
same inputs are identical.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from dpstream.pipeline.actions import Append, LogRecord, LogSlice
from dpstream.pipeline.cli.run import StageName, _make_stage
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.memory import MemoryLog, MemoryWorker
from dpstream.pipeline.kafka.workers import Committed, group_name
from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.log_lines import LogLines
from dpstream.pipeline.kafka.workers.metrics import WorkerSnapshot, metric_families
from dpstream.pipeline.kafka.workers.observer import Observer, WindowCounters
from dpstream.pipeline.kafka.workers.worker_facts import JobFacts, heartbeat
from dpstream.pipeline.results.watched_estimates import WatchedEstimates
from dpstream.pipeline.stages.environment import FinishedWindow
from dpstream.pipeline.stages.topic_uses import hides_messages, stages_of
from dpstream.topics.names import SUMS, Role
from tests.support.commands import Commands
from tests.support.live_page import live_page
from tests.support.memory_cluster import MemoryCluster, use_cluster
from tests.support.neighbor_inputs import Inputs
from tests.support.public_view import (
    SameRelease,
    Seen,
    api_paths,
    as_cluster,
    fix_randomness,
    seen_commands,
    seen_deployments,
    seen_recording,
    seen_results,
    seen_topic,
)
from tests.support.sealing import SHUFFLE_KEYS, all_keys

NOW = 1_700_000_000_000
"""Milliseconds since 1970, on all clocks."""


class RunCluster(MemoryCluster):
    """In-memory cluster with committed offsets by group, topic and partition."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: NOW)
        self.commits: dict[tuple[str, str, int], int] = {}

    def committed(self, group: str, topic: str) -> list[Committed | None]:
        found = [self.commits.get((group, topic, each)) for each in range(self.partitions[topic])]
        return [None if offset is None else Committed(offset) for offset in found]


class ClusterLog(MemoryLog):
    def __init__(self, cluster: RunCluster, job: DeployedJob) -> None:
        super().__init__(cluster.clock)
        self._cluster = cluster
        self._job = job

    def append(self, action: Append) -> None:
        held = self._cluster.records[self._job.topic(action.role), action.partition]
        held.append(
            LogRecord(len(held), action.value, self.clock(), action.key, tuple(action.headers))
        )

    def end(self, role: Role, partition: int) -> int:
        return self._cluster.end_offsets(self._job.topic(role))[partition]

    def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        records = tuple(self._cluster.read(self._job.topic(role), partition, start, stop))
        return LogSlice(records, start + len(records))

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        self._cluster.delete_below(self._job.topic(role), offset, partition)


@dataclass
class Worker:
    cluster: RunCluster
    job: DeployedJob
    name: StageName
    folder: Path
    text: io.StringIO = field(default_factory=io.StringIO)
    lines: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        job = self.job
        clock = BrokerClock(steady=lambda: 0.0)
        clock.note(NOW, 0.0)
        logs = [
            LogLines(
                job.name, self.name, "worker", as_json, stream, lambda: 0.0, lambda: NOW / 1000
            )
            for as_json, stream in ((False, self.text), (True, self.lines))
        ]

        def told(window: FinishedWindow) -> None:
            for log in logs:
                log.window(window)

        windows = WindowCounters(told, clock=lambda: 0.0, wall_clock=lambda: NOW / 1000)
        self.folder.mkdir(parents=True)
        watched = WatchedEstimates(job)
        stage = _make_stage(
            self.name, job, self.folder, None, all_keys(SHUFFLE_KEYS), windows, clock, watched
        )
        self._log = ClusterLog(self.cluster, job)
        self._group = group_name(job, self.name)
        self._topic = job.topic(stage.role)
        self._worker = MemoryWorker(stage, self._log)
        self._shown = 0
        hides = hides_messages(job, self.name)
        snapshot = WorkerSnapshot(
            job.name, self.name, self._group, self._topic, hides, facts=JobFacts.of(job)
        )
        self._observer = Observer(snapshot, windows, lambda: watched.latest)
        for partition in range(len(job.start_offsets[stage.role])):
            self._worker.run(self._worker.assign(partition))

    def work(self) -> tuple[str, Any]:
        """Process everything available, write the heartbeat, and return metrics and heartbeat."""
        worker = self._worker
        before = dict(worker.positions)
        worker.run(worker.drain())
        read = sum(worker.positions.values()) - sum(before.values())
        self._shown += read
        role = worker.stage.role
        for (of, partition), offset in self._log.committed.items():
            assert of is role
            self.cluster.commits[self._group, self._topic, partition] = offset
        ends = dict(enumerate(self.cluster.end_offsets(self._topic)))
        committed = dict.fromkeys(worker.positions, 0) | {
            partition: offset for (_, partition), offset in self._log.committed.items()
        }
        execution = SimpleNamespace(
            restored=True, positions=worker.positions, records=self._shown, committed=committed
        )
        self._observer.observe(
            0.0,
            cast(Execution, execution),
            worker.stage,
            ends,
            broker_answers=True,
            clock_ahead=0.0,
        )
        told = {
            **heartbeat(worker.stage.heartbeat(), worker.positions, ends, read, 1.0),
            "deployment": self.job.deployment.hex(),
            "stage": self.name,
            "worker": "worker",
            "time": NOW,
            "clock_ahead": 0.0,
        }
        key = f"{self.name}/worker".encode()
        self.cluster.append(self.job.topic(Role.STATUS), json.dumps(told).encode(), key=key)
        return metrics_text(self._observer.snapshot), told


def metrics_text(snapshot: WorkerSnapshot) -> str:
    """Return the Prometheus metrics without process metrics."""

    class Told(Collector):
        def collect(self) -> Iterator[Any]:
            return metric_families(snapshot)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told())
    return generate_latest(registry).decode()


def run_in_memory(
    folder: Path,
    inputs: Inputs,
    release: SameRelease,
    dpstream: Commands,
    disturb: Callable[[RunCluster, DeployedJob], None] = lambda cluster, job: None,
) -> Seen:
    """Return all observations of a run.

    Args:
        folder: New folder for state and recordings.
        release: Replaces the messages of this run by the messages of a first run.
        disturb: Sends additional records after the first producer.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("DPSTREAM_HOME", str(folder / "home"))
        cluster = RunCluster()
        use_cluster(monkeypatch, cluster)
        monkeypatch.setattr(time, "time_ns", lambda: NOW * 1_000_000)
        monkeypatch.setattr(time, "time", lambda: NOW / 1000)
        fix_randomness(monkeypatch)
        release.patch(monkeypatch)
        return _run(folder, inputs, cluster, dpstream, disturb)


def _run(
    folder: Path,
    inputs: Inputs,
    cluster: RunCluster,
    dpstream: Commands,
    disturb: Callable[[RunCluster, DeployedJob], None],
) -> Seen:
    deployed = dpstream("deploy", inputs.job, "--json")
    name = deployed.json["job"]
    job = find_deployed(as_cluster(cluster), name)
    workers = [Worker(cluster, job, StageName(stage), folder / stage) for stage in stages_of(job)]
    reports, codes, metrics, heartbeats = [], [], [], []
    for index, (producer, rows) in enumerate(inputs.rows.items()):
        options = ("--input", rows, "--users", inputs.user_lists[producer], "--skip-bad-rows")
        command = ("produce", name, "--name", producer, "--to-epoch", job.epochs.count)
        codes.append(dpstream(*command, *options).code)
        if index == 0:
            disturb(cluster, job)
        reports += [
            seen_topic(as_cluster(cluster), job, role, timed=True) for role in job.route.reports
        ]
        for worker in workers:
            told, heart = worker.work()
            metrics.append(told)
            heartbeats.append(heart)
    topics = {
        role: seen_topic(as_cluster(cluster), job, role, timed=True)
        for role in job.start_offsets
        if role not in job.route.reports
    }
    return {
        "reports": reports,
        "registrations": topics[Role.PRODUCERS],
        "decisions": topics[Role.MANIFESTS],
        "windows": topics[Role.SHUFFLED],
        "partials": [topics[role] for role in (*SUMS, Role.PARTIALS) if role in topics],
        "estimates": topics[Role.ESTIMATES],
        "documents": topics[Role.RESULTS],
        "rejections": topics[Role.DEAD_LETTERS],
        "progress": (dict(cluster.commits), dict(cluster.starts)),
        "heartbeats": (topics[Role.STATUS], heartbeats),
        "metrics": metrics,
        "log lines": [(worker.text.getvalue(), worker.lines.getvalue()) for worker in workers],
        "deployments": seen_deployments(as_cluster(cluster), job),
        "status": seen_commands(dpstream, name),
        "results": seen_results(dpstream, name),
        "page": asyncio.run(_page(cluster, job)),
        "recording": seen_recording(dpstream, name, folder / "recording"),
        "exit codes": codes,
    }


async def _page(cluster: RunCluster, job: DeployedJob) -> dict[str, Any]:
    async with live_page(cluster) as page:
        await page.look()
        found: dict[str, Any] = {}
        for path in api_paths(job.name):
            async with page.client.get(page.address + path) as response:
                found[path] = response.status, await response.read()
        async with page.view(f"job={job.name}") as viewer:
            said = []
            while True:
                message = await asyncio.wait_for(viewer.receive_json(), 20)
                said.append(message)
                if message["type"] == "epoch" and message["epoch"] == job.last_epoch:
                    break
            found["messages"] = said
        return found
