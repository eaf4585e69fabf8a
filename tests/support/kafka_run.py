"""Complete run on a real broker through the user commands, like `tests.support.memory_run`.

Since clocks advance, timestamps are masked and heartbeats are compared only at the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import pyarrow.parquet as pq
import pytest

from dpstream.pipeline.cli.run import StageName
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.broker_clock import own_milliseconds
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.kafka.workers import floor_of, group_name
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.topics.manifests import decode_manifest
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.neighbor_inputs import Inputs
from tests.support.public_view import (
    SameRelease,
    Seen,
    api_paths,
    fix_randomness,
    seen_deployments,
    seen_newest,
    seen_topic,
)
from tests.support.served import Served

ROOT = Path(__file__).parents[2]
TIMEOUT = 120.0
"""Timeout in seconds, far longer than any expected wait."""

_LOOK_SECONDS = 0.2

_TIMES = re.compile(r"\b1[6-9]\d{11}\b|\b20\d\d-\d\d-\d\d[T ][\d:.]+Z?|\b\d\d:\d\d:\d\d\b")
_OF_THE_MOMENT = re.compile("seconds|dpstream_process_|records_read")
_SECONDS = re.compile(r", [\d.e-]+ s$", re.MULTILINE)
_CLOCKS = ("age", "at", "lag_seconds", "clock_ahead", "run", "since", "time", "waiting")
# Kafka draws the ids of topics; a heartbeat's checksum covers a manifest with its timestamp.
_MASKED = {*_CLOCKS, "checksum", "topic_ids"}


def masked(value: Any, job: str) -> Any:
    """Mask timestamps and the job's name in a value."""
    if isinstance(value, bytes):
        return masked(value.decode("latin-1"), job)
    if isinstance(value, str):
        return _TIMES.sub("TIME", value.replace(job, "JOB"))
    if isinstance(value, dict):
        return {
            masked(key, job): masked(each, job) for key, each in value.items() if key not in _MASKED
        }
    if isinstance(value, list | tuple):
        return [masked(each, job) for each in value]
    if isinstance(value, int) and 1_600_000_000_000 < value < 2_000_000_000_000:
        return "TIME"
    return value


def run_on_kafka(
    servers: str, folder: Path, inputs: Inputs, release: SameRelease, dpstream: Commands
) -> Seen:
    """Return all observations of a run, with the arguments of `run_in_memory`."""
    with pytest.MonkeyPatch.context() as monkeypatch, Cluster(Connection((servers,))) as cluster:
        monkeypatch.setenv("DPSTREAM_HOME", str(folder / "home"))
        monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", servers)
        fix_randomness(monkeypatch)
        name = dpstream("deploy", inputs.job, "--json").json["job"]
        job = find_deployed(cluster, name)
        codes = []
        for producer, rows in inputs.rows.items():
            options = ("--input", rows, "--users", inputs.user_lists[producer], "--skip-bad-rows")
            codes.append(dpstream("produce", name, "--name", producer, *options).code)
        reports = seen_topic(cluster, job, Role.REPORTS, timed=False)
        with _workers(job, release) as workers:
            _wait(lambda: _all_done(cluster, job))
            # Metrics reflect the latest poll, and heartbeats the previous one.
            for _ in range(2):
                done = own_milliseconds()
                _wait(lambda done=done: _all_idle(cluster, job, done))  # type: ignore[misc]
            seen = _seen_while_it_runs(cluster, job, workers, dpstream, folder)
        seen |= {"reports": reports, "exit codes": codes}
        seen["log lines"] = [_told(worker.log) for worker in workers]
        return {key: masked(value, name) for key, value in seen.items()}


def _told(log: str) -> list[str]:
    """Return a worker's log lines. The position of the partition assignment depends on Kafka."""
    lines = _SECONDS.sub("", log).splitlines()
    return sorted(lines, key=lambda line: " worker: partitions: " not in line)


class _Worker:
    """Worker process with its `log`, which is set when it has ended."""

    def __init__(self, job: DeployedJob, stage: StageName, release: SameRelease) -> None:
        self.port = free_port()
        self.log = ""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.kafka.neighbor_worker", release.folder),
                *("run", stage, job.name, "--name", "worker", "--metrics", str(self.port)),
            ],
            cwd=ROOT,
            env=os.environ,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.log = self.process.communicate(timeout=TIMEOUT)[1]

    def metrics(self) -> list[str]:
        """Return the worker's metrics, without times, process metrics, and the initial backlog."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=TIMEOUT) as answer:
            lines: list[str] = answer.read().decode().splitlines()
        return [line for line in lines if not _OF_THE_MOMENT.search(line)]


@contextmanager
def _workers(job: DeployedJob, release: SameRelease) -> Iterator[list[_Worker]]:
    started = [_Worker(job, StageName(stage), release) for stage in stages_of(job)]
    try:
        yield started
    finally:
        for worker in started:
            worker.end()


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not done():
        assert time.monotonic() < deadline, "the workers did not finish in time"
        time.sleep(_LOOK_SECONDS)


def _commits(cluster: Cluster, job: DeployedJob) -> dict[str, list[int | None]]:
    return {
        stage: [
            None if each is None else floor_of(each)
            for each in cluster.committed(group_name(job, stage), job.topic(role))
        ]
        for stage, role in stages_of(job).items()
    }


def _heartbeats(cluster: Cluster, job: DeployedJob) -> dict[bytes, Any]:
    return seen_newest(cluster, job.topic(Role.STATUS), lambda key: True)


def _all_done(cluster: Cluster, job: DeployedJob) -> bool:
    """Return whether all epochs are published and all records are processed and deleted."""
    ends = [cluster.end_offsets(job.topic(role)) for role in stages_of(job).values()]
    published = cluster.end_offsets(job.topic(Role.ESTIMATES)) == [job.last_epoch]
    deleted = cluster.start_offsets(job.topic(Role.REPORTS)) == ends[0]
    return published and deleted and list(_commits(cluster, job).values()) == ends


def _all_idle(cluster: Cluster, job: DeployedJob, since: int) -> bool:
    """Return whether every worker has reported since a given time that it is idle."""
    heard = _heartbeats(cluster, job).values()
    idle = [each for each in heard if each["time"] > since and not each["busy"]]
    return len(idle) == len(stages_of(job))


def _seen_while_it_runs(
    cluster: Cluster, job: DeployedJob, workers: list[_Worker], dpstream: Commands, folder: Path
) -> Seen:
    def topic(role: Role) -> list[tuple[object, ...]]:
        return seen_topic(cluster, job, role, timed=False)

    def said(*line: object) -> tuple[int, Any, str]:
        result = dpstream(*line)
        return result.code, _parsed(result.output), result.errors

    manifests = topic(Role.MANIFESTS)
    return {
        "registrations": topic(Role.PRODUCERS),
        "decisions": [(each[:4], _fields_of_manifest(each)) for each in manifests[1:]],
        "windows": topic(Role.SHUFFLED),
        "partials": topic(Role.PARTIALS),
        "estimates": topic(Role.ESTIMATES),
        "documents": topic(Role.RESULTS),
        "rejections": topic(Role.DEAD_LETTERS),
        "progress": (_commits(cluster, job), cluster.start_offsets(job.topic(Role.REPORTS))),
        "heartbeats": _heartbeats(cluster, job),
        "metrics": [worker.metrics() for worker in workers],
        "deployments": seen_deployments(cluster, job),
        "status": [
            said(command, job.name, "--json") for command in ("status", "producers", "dead-letters")
        ],
        "results": [
            said("estimates", job.name, *more)
            for more in ((), ("--format", "csv"), ("--json",), ("--smoothed", "--json"))
        ],
        "page": asyncio.run(_page(cluster.connection, job)),
        "recording": _recording(dpstream, job, folder / "recording"),
    }


def _fields_of_manifest(seen: tuple[object, ...]) -> dict[str, object]:
    value = seen[4]
    assert isinstance(value, bytes)
    manifest = decode_manifest(value)
    return {name: getattr(manifest, name) for name in manifest.__slots__ if name != "timestamp"}


def _parsed(text: str) -> Any:
    """Parse a text as JSON, or each line as JSON, or return it unchanged."""
    for lines in ([text], text.splitlines()):
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            continue
    return text


async def _page(connection: Connection, job: DeployedJob) -> dict[str, Any]:
    served = Served(connection, job.name)
    found: dict[str, Any] = {}
    async with served as address, aiohttp.ClientSession(address.rstrip("/")) as client:
        while job.name not in served.site.job_store.jobs:
            await asyncio.sleep(0.05)
        async with client.ws_connect(f"/ws?job={job.name}") as viewer:
            epochs: list[Any] = []
            pipeline = None
            while len(epochs) < (job.last_epoch or 0) or pipeline is None:
                served.site.look_who_watches()
                message = await asyncio.wait_for(viewer.receive_json(), TIMEOUT)
                if message["type"] == "epoch":
                    epochs.append(message)
                elif message["type"] == "pipeline":
                    pipeline = message
        found["epochs"] = epochs
        for path in api_paths(job.name):
            if "parquet" not in path:
                async with client.get(path) as response:
                    found[path] = response.status, _parsed(await response.text())
    return found


def _recording(dpstream: Commands, job: DeployedJob, folder: Path) -> Any:
    said = dpstream("record", job.name, "--output", folder, "--json").json
    tables = [pq.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))]
    return {"rows": tables, "epochs": said["epochs_added"], "reports": said["reports_added"]}
