"""Test clocks, retention and early producers on a real broker."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from kafka import KafkaProducer

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.status.collection import gather_status
from dpstream.pipeline.stages.decision_log import DecisionLog
from dpstream.topics.manifests import Manifest, WindowStatus, encode_manifest
from dpstream.topics.names import LOG_APPEND_TIME, TIMESTAMP_TYPE, Role
from tests.kafka.conftest import ROOT, TIMEOUT
from tests.support.clocks import Clock, compile_preload
from tests.support.new_jobs import new_job
from tests.support.processes import start_command, wait_until

NAMES = ("north", "south", "east", "west")


def deployed(cluster: Cluster, name: str, **epochs: object) -> DeployedJob:
    job = new_job(
        name,
        "future_rand",
        {"epsilon": 1.0, "max_changes": 2},
        epochs={"count": 4096, **epochs},
        shuffle={"minimum": 1, "grace": "1 s", "producers": 4},
        topics={"partitions": 2},
    )
    return deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)


def manifests(cluster: Cluster, job: DeployedJob) -> dict[int, Manifest]:
    found: dict[int, Manifest] = {}
    decisions = DecisionLog(job, lambda each: found.update({each.manifest.epoch: each.manifest}))
    for record in cluster.read(job.topic(Role.MANIFESTS)):
        decisions.apply(record)
    return found


class Gateways:
    """Four producers of a job, with one device each."""

    def __init__(self, cluster: Cluster, job: DeployedJob, folder: Path) -> None:
        self._opened = {
            name: open_producer(cluster, job, folder / name, name=name) for name in NAMES
        }
        self._producers: dict[str, Producer] = {
            name: opened.__enter__() for name, opened in self._opened.items()
        }
        for name, producer in self._producers.items():
            producer.enroll([name])

    def close(self, epoch: int, *names: str) -> None:
        for name in names or NAMES:
            self._producers[name].report(epoch, {name: 1})
            self._producers[name].close(epoch)

    def shut(self) -> None:
        for opened in self._opened.values():
            opened.__exit__(None, None, None)


def test_retention_does_not_depend_on_the_clocks_of_writers(
    cluster: Cluster, bootstrap_servers: str, job_name: str
) -> None:
    """Records dated 1973 or next year get the time of their arrival as timestamp."""
    job = deployed(cluster, job_name)
    before = time.time_ns() // 1_000_000
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    for role in job.start_offsets:
        for stamp in (100_000_000_000, before + 365 * 86_400_000):
            producer.send(job.topic(role), b"x", key=b"k", partition=0, timestamp_ms=stamp).get(30)
    producer.close()
    after = time.time_ns() // 1_000_000
    for role in job.start_offsets:
        records = list(cluster.read(job.topic(role)))
        assert len(records) == 2, role
        assert all(before - 1_000 <= record.timestamp <= after + 1_000 for record in records), role


def test_redeployment_sets_log_append_time(
    cluster: Cluster,
    start: Callable[..., subprocess.Popen[str]],
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the redeployment, workers and status report the problem."""
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    job = deployed(cluster, job_name)
    reports = job.topic(Role.REPORTS)
    cluster.alter_topics({reports: {TIMESTAMP_TYPE: "CreateTime"}})
    issues = gather_status(cluster, job, time.time_ns() // 1_000_000).issues
    assert any(
        f"topic {reports} of {job_name} uses the clocks of the clients" in each for each in issues
    )
    worker = start("run", "shuffle", job_name, "--name", "w1")
    assert worker.stderr is not None
    said = next(line for line in worker.stderr if "uses the clocks" in line)
    assert f"topic {reports} of {job_name} uses the clocks of the clients" in said
    again = new_job(
        job_name,
        "future_rand",
        {"epsilon": 1.0, "max_changes": 2},
        epochs={"count": 4096},
        shuffle={"minimum": 1, "grace": "1 s", "producers": 4},
        topics={"partitions": 2},
    )
    after = deploy(cluster, again, deployment=secrets.token_bytes(16), now=1)
    assert after.deployment == job.deployment
    assert cluster.existing_topics([reports])[reports].configs[TIMESTAMP_TYPE] == LOG_APPEND_TIME


def test_rewritten_window_has_the_time_of_its_rewrite(
    cluster: Cluster,
    start: Callable[..., subprocess.Popen[str]],
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If it had the time of its manifest, retention would delete it before it is read."""
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    job = deployed(cluster, job_name)
    gateways = Gateways(cluster, job, tmp_path)
    gateways.close(1)
    before = time.time_ns() // 1_000_000
    decided = Manifest(
        fingerprint=job.fingerprint,
        deployment=job.deployment,
        epoch=1,
        window_status=WindowStatus.RELEASED,
        first_offset=0,
        cut_offset=cluster.end_offsets(job.topic(Role.REPORTS))[job.topics.partition_of(1)],
        first_epoch=1,
        producers=(True,) * len(NAMES),
        populations=(1,) * len(NAMES),
        contributors=len(NAMES),
        population=len(NAMES),
        timestamp=before - 8 * 86_400_000,
    )
    cluster.append(job.topic(Role.MANIFESTS), encode_manifest(decided))
    start("run", "shuffle", job_name, "--name", "w1")
    shuffled, partition = job.topic(Role.SHUFFLED), job.topics.partition_of(1)
    wait_until(lambda: cluster.end_offsets(shuffled)[partition] > 0, "the window is written")
    (chunk, *_) = cluster.read(shuffled, partition)
    assert before - 1_000 <= chunk.timestamp <= time.time_ns() // 1_000_000 + 1_000
    assert manifests(cluster, job) == {1: decided}
    gateways.shut()


StartWithClock: TypeAlias = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_with_clock(bootstrap_servers: str, tmp_path: Path) -> Iterator[StartWithClock]:
    """Function that starts commands with clocks `ahead` seconds ahead."""
    started: list[subprocess.Popen[str]] = []
    preload = compile_preload(tmp_path)

    def start_process(ahead: int, *arguments: str) -> subprocess.Popen[str]:
        clock = Clock(preload, tmp_path / f"clock{ahead}")
        clock.set(ahead)
        process = start_command(
            *arguments,
            servers=bootstrap_servers,
            home=tmp_path / f"home{ahead}",
            environment={**os.environ, **clock.environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=TIMEOUT)


def test_live_input_uses_the_clock_of_the_broker(
    cluster: Cluster, start_with_clock: StartWithClock, job_name: str, tmp_path: Path
) -> None:
    """By its own clock, the producer would close ten five-minute epochs early."""
    began = datetime.now(UTC) - timedelta(minutes=7)
    job = deployed(cluster, job_name, start=began.isoformat(), length="PT5M")
    (tmp_path / "users.txt").write_text("ann\n")
    registry = str(tmp_path / "users.txt")
    process = start_with_clock(3_000, "produce", job_name, "--input", "-", "--users", registry)
    said, errors = process.communicate("user,value\nann,1\n", timeout=TIMEOUT)
    assert process.returncode == 0, errors
    assert "this machine's clock is 50 min ahead of the broker's" in errors
    ends = began + timedelta(minutes=10)
    assert f"epoch 2 closes at {ends:%Y-%m-%d %H:%M:%S} UTC" in errors
    assert "no epoch was closed" in said
    assert not any(cluster.end_offsets(job.topic(Role.REPORTS)))


def test_wrong_clocks_are_reported_and_do_not_distort_worker_ages(
    cluster: Cluster, start_with_clock: StartWithClock, job_name: str, tmp_path: Path
) -> None:
    job = deployed(cluster, job_name)
    worker = start_with_clock(-8 * 86_400, "run", "shuffle", job_name, "--name", "w1")
    gateways = Gateways(cluster, job, tmp_path)
    gateways.close(1)
    wait_until(lambda: 1 in manifests(cluster, job), "epoch 1 is finalized")
    off_by = abs(manifests(cluster, job)[1].timestamp - time.time_ns() // 1_000_000)
    assert off_by < TIMEOUT * 1000, "a window is dated by the broker's clock"
    (chunk, *_) = cluster.read(job.topic(Role.SHUFFLED), 1)
    assert abs(chunk.timestamp - time.time_ns() // 1_000_000) < TIMEOUT * 1000
    status = start_with_clock(7_200, "status", job_name, "--json")
    said, errors = status.communicate(timeout=TIMEOUT)
    assert status.returncode == 1, errors
    found = json.loads(said)
    issues = " ".join(found["issues"])
    assert "This machine's clock is 2 h ahead of the broker's" in issues
    assert "The clock of worker w1 of stage shuffle is 8 days behind the broker's" in issues
    (shuffle, *_) = found["stages"]
    assert shuffle["workers"][0]["age"] < 3_600
    worker.send_signal(signal.SIGTERM)
    _, lines = worker.communicate(timeout=TIMEOUT)
    assert "this machine's clock is 8 days behind the broker's: correct it" in lines
    gateways.shut()
