"""Complete pipeline on a real broker, with every component in a separate process."""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Literal

from dpstream.aggregators.count_min import CountMinAggregator
from dpstream.aggregators.future_rand import FutureRandAggregator
from dpstream.aggregators.value_stream import ValueStreamAggregator
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.pipeline.operations.processes import dpstream_command, python_module
from dpstream.pipeline.operations.restarted_processes import Child, RestartedProcesses
from dpstream.pipeline.operations.up.managed_broker import ManagedBroker, Message
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.stages.partial_log import PartialLog
from dpstream.pipeline.state import kafka_folder
from dpstream.randomizers.dyadic import orders_due
from dpstream.topics.names import Role
from tests.benchmarks.measuring import (
    MEGABYTE,
    Rate,
    busy_seconds,
    on_cores,
    peak_megabytes,
    processor_seconds,
)
from tests.benchmarks.one_core import (
    DrawnReports,
    items_job_values,
    job_values,
    letters_job_values,
)
from tests.benchmarks.producing import send

STAGES = ("shuffle", "aggregate", "publish")
_JOB_VALUES = {
    "bits": job_values,
    "letters": letters_job_values,
    "cells": items_job_values,
}
_TIMEOUT = 300.0
_POLL_SECONDS = 0.05


class BenchmarkError(Exception):
    """A measured component failed."""


@dataclass(frozen=True, slots=True)
class Load:
    """Reports to send.

    Attributes:
        kind: Kind of producer, as in `tests.benchmarks.producing`.
        number: Number of devices, or of reports per epoch, for each producer.
        reports: Description of reports: bits of `future_rand`, symbols of `value_stream`, or cells
            of items.
    """

    kind: Literal["devices", "drawn", "held"]
    epochs: int
    producers: int
    number: int
    order: Literal["sorted", "random"] = "sorted"
    reports: Literal["bits", "letters", "cells"] = "bits"

    @property
    def window_reports(self) -> int:
        return self.producers * self.number


@dataclass(frozen=True, slots=True)
class Passage:
    """One run, from the first close of an epoch to the last published estimate.

    Attributes:
        reports: Number of reports in the published partials.
        processor: Processor seconds by process, including the broker.
        others: Processor seconds of all other processes on the machine during the run.
        peaks: Peak resident memory by process, in megabytes.
    """

    reports: int
    seconds: float
    processor: Mapping[str, float]
    others: float
    peaks: Mapping[str, float]

    @property
    def reports_per_second(self) -> float:
        return self.reports / self.seconds

    @property
    def cores_busy(self) -> float:
        """Average number of cores used by the run's processes."""
        return sum(self.processor.values()) / self.seconds

    @property
    def cores_of_others(self) -> float:
        """Average number of cores used by other processes, which slow down the run."""
        return self.others / self.seconds

    def shares(self) -> dict[str, float]:
        total = sum(self.processor.values())
        return {name: seconds / total for name, seconds in self.processor.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "reports": self.reports,
            "seconds": round(self.seconds, 3),
            "reports_per_second": round(self.reports_per_second),
            "cores_busy": round(self.cores_busy, 2),
            "cores_of_others": round(self.cores_of_others, 2),
            "processor_seconds": {name: round(s, 2) for name, s in self.processor.items()},
            "processor_share": {name: round(share, 3) for name, share in self.shares().items()},
            "peak_megabytes": {name: round(peak, 1) for name, peak in self.peaks.items()},
        }


@contextmanager
def local_broker(print_message: Callable[[str], None]) -> Iterator[Connection]:
    messages: Queue[Message] = Queue()
    with ManagedBroker(messages.put) as broker:
        while True:
            broker.check()
            try:
                message = messages.get(timeout=_POLL_SECONDS)
            except Empty:
                continue
            if message["kind"] == "ready":
                break
            if message["kind"] == "failed":
                raise BenchmarkError(message["text"])
            if message["text"]:
                print_message(message["text"])
        yield Connection((message["text"],))


def produce(connection: Connection, runs: int) -> Rate:
    """Send batches of 64 KiB from one core, and wait until all are acknowledged."""
    reports = 20_000_000
    load = Load("drawn", epochs=64, producers=1, number=reports)
    with Cluster(connection) as cluster, _deployed(cluster, load) as job, on_cores(1):
        records = DrawnReports(job).epoch(64, reports)
        transport = KafkaTransport(cluster, job.name)
        seconds = []
        for _ in range(1 + runs):
            before = time.monotonic()
            transport.run(send(Role.REPORTS, 0, records))
            seconds.append(time.monotonic() - before)
    size = sum(map(len, records))
    return Rate("produce", reports, size / MEGABYTE, tuple(seconds[1:]), clock="wall")


def pass_through(connection: Connection, folder: Path, load: Load) -> Passage:
    with (
        Cluster(connection) as cluster,
        _deployed(cluster, load) as job,
        RestartedProcesses(_unexpected) as processes,
    ):
        run = _Run(cluster, job, processes, folder / job.name)
        run.start(connection, load)
        return run.measure(load)


@contextmanager
def _deployed(cluster: Cluster, load: Load) -> Iterator[DeployedJob]:
    name = f"bench-{secrets.token_hex(4)}"
    shuffle: dict[str, Any] = {"producers": load.producers, "order": load.order}
    if load.reports == "cells":
        shuffle["minimum"] = load.window_reports
    job = make_job(_JOB_VALUES[load.reports](name, load.epochs, **shuffle))
    now = time.time_ns() // 1_000_000
    yield deploy(cluster, job, deployment=secrets.token_bytes(16), now=now)
    undeploy(cluster, name, delete_topics=True)


@dataclass(slots=True)
class _Run:
    cluster: Cluster
    job: DeployedJob
    processes: RestartedProcesses
    folder: Path
    lines: Queue[str] = field(default_factory=Queue)
    producers: list[Child] = field(default_factory=list)

    def start(self, connection: Connection, load: Load) -> None:
        for stage in STAGES:
            command = ["run", stage, self.job.name, "--name", "bench", *connection.arguments()]
            self._launch(stage, dpstream_command(*command))
        for number in range(load.producers):
            name = "producer" if load.producers == 1 else f"producer {number + 1}"
            arguments = [load.kind, self.job.name, name]
            arguments += [connection.bootstrap_servers[0], str(self.folder / name)]
            arguments.append(str(load.number))
            command = python_module("tests.benchmarks.producing", *arguments)
            self.producers.append(self._launch(name, command))
        self._hear("ready")
        self._wait(lambda: {status["stage"] for status in self._statuses()} == set(STAGES))

    def measure(self, load: Load) -> Passage:
        pids = self._pids()
        before = {name: processor_seconds(pid) for name, pid in pids.items()}
        everything = busy_seconds()
        self._signal_producers()
        began = min(float(line.split()[1]) for line in self._hear("begun"))
        if load.kind == "held":
            self._hear("held")
            expected = load.epochs * load.window_reports
            self._wait(lambda: self._reports_held() == expected)
            self._signal_producers()
        estimates = EstimateReader(self.cluster, self.job)

        def complete() -> bool:
            for _ in estimates.read():
                pass
            return estimates.complete

        self._wait(complete)
        seconds = time.monotonic() - began
        processor = {name: processor_seconds(pid) - before[name] for name, pid in pids.items()}
        others = max(0.0, busy_seconds() - everything - sum(processor.values()))
        peaks = {name: peak_megabytes(pid) for name, pid in pids.items()}
        reports = count_reports(self.cluster, self.job)
        return Passage(reports, seconds, processor, others, peaks)

    def _pids(self) -> dict[str, int]:
        broker = LocalKafka(kafka_folder()).status().pid
        if broker is None:
            raise BenchmarkError("the local broker has exited")
        workers = {child.name: child.process.pid for child in self.processes.children}
        return {"broker": broker, **workers}

    def _launch(self, name: str, command: list[str]) -> Child:
        return self.processes.start(
            name, command, self.folder / f"{name}.log", on_line=self.lines.put
        )

    def _signal_producers(self) -> None:
        for child in self.producers:
            os.kill(child.process.pid, signal.SIGUSR1)

    def _hear(self, word: str) -> list[str]:
        heard: list[str] = []

        def heard_from_all() -> bool:
            while not self.lines.empty():
                line = self.lines.get()
                heard.extend([line] if line.startswith(word) else [])
            return len(heard) == len(self.producers)

        self._wait(heard_from_all)
        return heard

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not condition():
            for child in self.processes.children:
                if child.state != "running":
                    raise BenchmarkError(f"{child.name} has exited:{child.log_end()}")
            if time.monotonic() > deadline:
                logs = "".join(f"\n{c.name}:{c.log_end()}" for c in self.processes.children)
                raise BenchmarkError(f"no progress for {_TIMEOUT:g} s{logs}")
            time.sleep(_POLL_SECONDS)

    def _statuses(self) -> list[dict[str, Any]]:
        heartbeats = self.cluster.read(self.job.topic(Role.STATUS))
        statuses = [json.loads(heartbeat.value) for heartbeat in heartbeats]
        return [status for status in statuses if status["partitions"]]

    def _reports_held(self) -> int:
        """Return the number of reports in the shuffler's latest heartbeat."""
        shuffle = [status for status in self._statuses() if status["stage"] == "shuffle"]
        return int(shuffle[-1]["counts"].get("reports", 0))


def count_reports(cluster: Cluster, job: DeployedJob) -> int:
    """Count the reports in the first complete partial of every epoch."""
    count = 0

    def add(epoch: int, payload: bytes) -> None:
        nonlocal count
        aggregator = job.aggregator_from_bytes(payload)
        if isinstance(aggregator, CountMinAggregator):
            counts = aggregator.state.counts(epoch)
            count += 0 if counts is None else int(counts.sum())
            return
        if isinstance(aggregator, ValueStreamAggregator):
            count += aggregator.sums(epoch).reports
            return
        assert isinstance(aggregator, FutureRandAggregator)
        nodes = (aggregator.tree.node(order, epoch >> order) for order in range(orders_due(epoch)))
        count += int(sum(map(sum, nodes)))

    log = PartialLog(job, add)
    for record in cluster.read(job.topic(Role.PARTIALS)):
        log.apply(record)
    return count


def _unexpected(sentence: str) -> None:
    raise BenchmarkError(sentence)
