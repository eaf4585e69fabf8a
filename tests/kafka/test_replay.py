"""Test replays from the topics and a recording of a job, alongside the live job."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.deployments import charges
from dpstream.pipeline.results.follow import EstimateReader
from tests.support.commands import Commands
from tests.support.processes import start_command
from tests.support.small_run import EPOCHS, job_text, write_changes

# Far longer than any expected wait.
TIMEOUT = 90.0


Start: TypeAlias = Callable[..., subprocess.Popen[bytes]]


@contextmanager
def processes(home: Path, servers: str) -> Iterator[Start]:
    """Function that starts commands as processes, which end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start_process(*arguments: str) -> subprocess.Popen[bytes]:
        output: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = start_command(*arguments, servers=servers, home=home, **output)
        started.append(process)
        return process

    try:
        yield start_process
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(TIMEOUT)


@pytest.fixture
def start(tmp_path: Path, bootstrap_servers: str) -> Iterator[Start]:
    with processes(tmp_path / "home", bootstrap_servers) as start_process:
        yield start_process


def wait_until_published(servers: str, name: str, epochs: int = EPOCHS) -> None:
    """Wait for the first `epochs` estimates of a job, which might not be deployed yet."""
    deadline = time.monotonic() + TIMEOUT

    def wait(seconds: float) -> None:
        assert time.monotonic() < deadline, f"{name} is not published"
        time.sleep(seconds)

    with Cluster(Connection((servers,))) as cluster:
        while name not in (jobs := read_jobs(cluster).jobs):
            wait(0.1)
        reader = EstimateReader(cluster, jobs[name])
        for _ in islice(reader.follow(wait=wait), epochs):
            pass


@pytest.fixture(scope="module")
def live(broker: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, name = tmp_path_factory.mktemp("live"), f"test-{uuid.uuid4().hex[:12]}"
    servers = broker.status().bootstrap_servers
    assert servers is not None
    job_file, changes = folder / "job.yaml", write_changes(folder / "changes.csv")
    job_file.write_text(job_text(name))
    with processes(folder / "home", servers) as run:
        assert run("deploy", str(job_file)).wait(TIMEOUT) == 0
        for stage in ("shuffle", "aggregate", "publish"):
            run("run", stage, name, "--name", "w1")
        assert run("produce", name, "--input", str(changes)).wait(TIMEOUT) == 0
        wait_until_published(servers, name)
    return name


def test_replays_reproduce_the_results_of_the_live_job(
    dpstream: Commands,
    start: Start,
    bootstrap_servers: str,
    live: str,
    tmp_path: Path,
) -> None:
    planned = dpstream("replay", live, "--partitions", 3, "--dry-run", "--json").json
    assert (planned["reads"]["windows"], planned["reads"]["records"]) == (EPOCHS, EPOCHS)

    # The replay has its own workers and another number of partitions.
    done = dpstream("replay", live, "--partitions", 3)
    assert done.code == 0, done.errors
    assert dpstream("diff", live, f"{live}-replay").code == 0
    rejected = dpstream("replay", live, "--partitions", 3)
    assert rejected.code == 1
    assert "is a finished replay" in rejected.errors

    # Two aggregate workers run in addition.
    name = f"{live}-two"
    written = dpstream("replay", live, "--new-name", name, "--partitions", 5, "--no-workers")
    assert written.code == 0, written.errors
    for worker in ("w1", "w2"):
        start("run", "aggregate", name, "--name", worker)
    start("run", "publish", name, "--name", "w1")
    wait_until_published(bootstrap_servers, name)
    assert dpstream("diff", live, name).code == 0

    # Replay the recording.
    folder, name = tmp_path / "recorded", f"{live}-recorded"
    assert dpstream("record", live, "--output", folder).code == 0
    done = dpstream("replay", folder, "--new-name", name, "--partitions", 1)
    assert done.code == 0, done.errors
    assert dpstream("diff", live, name).code == 0

    # Replay only some epochs; earlier counts are copied.
    name = f"{live}-part"
    done = dpstream("replay", live, "--new-name", name, "--from-epoch", 7, "--to-epoch", EPOCHS - 1)
    assert done.code == 0, done.errors
    assert dpstream("diff", live, name, "--epochs", f"1..{EPOCHS - 1}").code == 0

    # Replay in memory.
    assert (
        dpstream("replay", live, "--in-memory", "--format", "csv").output
        == dpstream("estimates", live, "--format", "csv").output
    )
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        state = read_jobs(cluster)
        assert state.phase(f"{live}-replay") is Phase.DRAINED
        charged = [charge.job for charge in charges(cluster) if charge.job.startswith(live)]
    assert charged == [live]
