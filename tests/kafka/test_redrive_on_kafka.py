"""Test that redrive adds a late producer to its window, as ``status`` shows."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append, Flush, Steps
from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster, KafkaTransport
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.operations.deployments import deploy
from dpstream.topics.manifests import Manifest, decode_manifest
from dpstream.topics.names import Role
from tests.support.commands import Commands, Result
from tests.support.new_jobs import new_job
from tests.support.processes import start_command

TIMEOUT = 60.0
HALF = 100


@pytest.fixture
def job(cluster: Cluster, job_name: str) -> DeployedJob:
    made = new_job(
        job_name,
        "future_rand",
        {"epsilon": 1.0, "max_changes": 2},
        epochs={"count": 8},
        shuffle={"producers": 2, "grace": "1h"},
        topics={"partitions": 2},
    )
    return deploy(cluster, made, deployment=secrets.token_bytes(16), now=0)


@pytest.fixture
def worker(
    dpstream: Commands, job: DeployedJob, bootstrap_servers: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = ("run", "shuffle", job.name, "--name", "w1")
    process = start_command(*command, servers=bootstrap_servers)
    yield process
    process.terminate()
    process.wait(TIMEOUT)


def wait_for(look: Callable[[], Result], enough: Callable[[Result], bool]) -> Result:
    deadline = time.monotonic() + TIMEOUT
    while not enough(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def send(cluster: Cluster, job: DeployedJob, log: MemoryLog) -> int:
    """Send a producer's records without its registration, and return their number."""
    values = [
        (partition, value)
        for partition in range(2)
        for value in log.values(Role.REPORTS, partition)
    ]

    def steps() -> Steps[None]:
        for partition, value in values:
            yield Append(Role.REPORTS, partition, value)
        yield Flush()

    KafkaTransport(cluster, job.name).run(steps())
    return len(values)


def manifests(cluster: Cluster, job: DeployedJob) -> list[Manifest]:
    return [decode_manifest(record.value) for record in cluster.read(job.topic(Role.MANIFESTS))]


def test_redrive_counts_reports_from_a_producer_registered_late(
    cluster: Cluster,
    job: DeployedJob,
    dpstream: Commands,
    worker: subprocess.Popen[bytes],
    tmp_path: Path,
) -> None:
    with open_producer(cluster, job, tmp_path / "north", name="north") as north:
        north.enroll([f"north{user}" for user in range(HALF)])
        north.report(1, {f"north{user}": 1 for user in range(HALF)})
        north.close(1)
    memory = MemoryLog()
    with Producer(job, None, name="south", transport=MemoryDriver(memory)) as south:
        south.enroll([f"south{user}" for user in range(HALF)])
        south.report(1, {f"south{user}": 1 for user in range(HALF)})
        south.close(1)
    sent = send(cluster, job, memory)

    rejected = wait_for(
        lambda: dpstream("status", job.name),
        lambda said: f"{sent} enrollment" in said.output and "epoch 1" in said.output,
    )
    assert rejected.code == 1
    assert "producers that may still register" in rejected.output
    assert "1 of 2 producers have registered" in " ".join(rejected.output.split())
    early = dpstream("dead-letters", job.name, "--redrive")
    assert early.output == (
        f"nothing was requeued\n{sent} records kept: enrollment is still not registered\n"
    )

    (registration,) = memory.values(Role.PRODUCERS)
    cluster.append(job.topic(Role.PRODUCERS), registration)
    planned = dpstream("dead-letters", job.name, "--redrive", "--dry-run", "--json").json
    assert not manifests(cluster, job)
    done = dpstream("dead-letters", job.name, "--redrive", "--json").json
    assert planned == {**done, "dry_run": True}
    assert (sum(done["requeued"].values()), done["kept"]) == (sent, {})
    well = wait_for(
        lambda: dpstream("status", job.name), lambda said: "windows: 1 released" in said.output
    )
    (decided,) = manifests(cluster, job)
    assert (decided.contributors, decided.producers) == (2 * HALF, (True, True))

    again = dpstream("dead-letters", job.name, "--redrive")
    assert again.output == "nothing was requeued\n"
    assert f"dead letters: {sent} requeued" in well.output
    assert "dead letters:" not in " ".join(
        line for line in well.output.splitlines() if "issue:" in line
    )
    listed = dpstream("dead-letters", job.name, "--json").json
    assert listed == [], "requeued records are only in the reports"

    worker.terminate()
    assert worker.wait(TIMEOUT) == 0
    stopped = dpstream("status", job.name, "--json")
    (shuffle, *_) = json.loads(stopped.output)["stages"]
    assert (shuffle["workers"], shuffle["epoch"], shuffle["lag"]) == ([], 1, 0)
