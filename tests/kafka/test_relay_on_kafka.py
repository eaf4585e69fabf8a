"""Gateways that send through a relay on a real broker, which is killed while they do."""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.connect import RelayAddress, open_producer
from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.connection import Connection
from pipeline.kafka.local_kafka.broker import free_port
from pipeline.operations.deployments import deploy
from pipeline.results.follow import EstimateReader
from pipeline.stages.estimate_records import EstimateRecord
from topics.manifests import Fate
from topics.names import Role

pytestmark = pytest.mark.verify

GATEWAYS, EPOCHS, USERS = 3, 4, 20
PATIENCE = 60.0
Start = Callable[..., subprocess.Popen[str]]
Relays = Callable[[], tuple[subprocess.Popen[str], int]]


@pytest.fixture
def relays(start: Start) -> Relays:
    """Starts a relay, each time in the place of the one before; returns its port, too."""
    port = free_port()

    def run() -> tuple[subprocess.Popen[str], int]:
        process = start("relay", "--bind", f"127.0.0.1:{port}")
        assert process.stdout is not None
        assert process.stdout.readline() == f"relay: http://127.0.0.1:{port}\n"
        return process, port

    return run


def test_a_relay_that_is_killed_loses_and_doubles_nobody(
    cluster: Cluster,
    bootstrap_servers: str,
    job_name: str,
    start: Start,
    relays: Relays,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.jobs.deployed_job.MANY_PRODUCERS", GATEWAYS)
    file = make_job(
        {
            "name": job_name,
            "protocol": "future_rand",
            "parameters": {"epsilon": 1, "changes": 2},
            "epochs": {"count": EPOCHS},
            "shuffle": {"minimum": 1, "producers": GATEWAYS, "grace": "1h"},
            "topics": {"partitions": 1},
        }
    )
    job = deploy(cluster, file, deployment=secrets.token_bytes(16), now=0)
    assert job.bundles
    for stage in ("shuffle", "aggregate", "publish"):
        start("run", stage, job_name, "--name", "only")
    running, port = relays()
    address = RelayAddress(f"http://127.0.0.1:{port}")
    told: list[str] = []
    turn = threading.Barrier(GATEWAYS + 1, timeout=PATIENCE)

    def report(name: str) -> None:
        folder, own = tmp_path / name, Cluster(Connection((bootstrap_servers,)))
        with (
            own,
            open_producer(own, job, folder, name=name, notify=told.append, relay=address) as p,
        ):
            p.enrol([f"{name} {user}" for user in range(USERS)])
            for epoch in range(1, EPOCHS + 1):
                p.report(epoch, dict.fromkeys(p.users, epoch % 2))
                turn.wait()
                p.close(epoch)
                turn.wait()

    with ThreadPoolExecutor(GATEWAYS) as pool:
        reporting = [pool.submit(report, f"g{number}") for number in range(GATEWAYS)]
        for _ in range(EPOCHS):
            running.kill()
            running.wait(PATIENCE)
            told.clear()
            turn.wait()
            wait_for(lambda: sum("waiting, nothing is lost" in each for each in told) == GATEWAYS)
            running, _ = relays()
            turn.wait()
        for each in reporting:
            each.result(PATIENCE)
    estimates = EstimateReader(cluster, job)
    found: list[EstimateRecord] = []

    def published() -> bool:
        found.extend(estimates.read())
        return len(found) == EPOCHS

    wait_for(published)
    assert [(each.epoch, each.fate) for each in found] == [
        (epoch, Fate.RELEASED) for epoch in range(1, EPOCHS + 1)
    ]
    assert {(each.contributors, each.population) for each in found} == {(GATEWAYS * USERS,) * 2}
    # A batch and a punctuation of each in one record, which may have been deleted meanwhile.
    assert 0 < sum(cluster.end_offsets(job.topic(Role.REPORTS))) <= GATEWAYS * EPOCHS
    assert not list(cluster.read(job.topic(Role.DEAD_LETTERS)))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.05)
