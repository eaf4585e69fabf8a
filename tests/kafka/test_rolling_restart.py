"""Test that restarting all workers one at a time has no visible effect on estimates."""

from __future__ import annotations

import itertools
import secrets
import signal
import time
from pathlib import Path

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.estimate_records import FirstEstimates
from dpstream.topics.names import Role
from tests.support import cells
from tests.support.cell_processes import TIMEOUT, Processes, Published, expect_every_cell_once
from tests.support.new_jobs import new_job
from tests.support.processes import wait_until

CELLS = 8_000
PRODUCERS = {"north": (0, 5_000), "south": (5_000, 3_000)}
EPOCHS_MAX = 1_024
EPOCH_SECONDS = 0.5
HELD_BACK_MAX = 15.0


@pytest.mark.verify
def test_rolling_restart_delays_estimates_by_less_than_15_seconds(
    bootstrap_servers: str, job_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    job = new_job(
        job_name, cells.NAME, {"cells": CELLS}, count=EPOCHS_MAX, minimum=1, producers=2, grace="1h"
    )
    stop = tmp_path / "stop"
    options = ("--steady", str(EPOCH_SECONDS), "--until", str(stop), "--production")
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        stages = {"shuffle": 2, "aggregate": 2, "publish": 2}
        processes = Processes(
            bootstrap_servers, deployed, tmp_path, stages, PRODUCERS, options=options
        )
        published = Published(cluster, deployed)
        try:
            published.wait_for(4, processes)
            began = time.time()
            for name in processes.worker_names:
                restart(name, processes, published)
            ended = time.time()
            stop.touch()
            last = min(closed_epoch(processes, name) for name in PRODUCERS)
            published.wait_for(last, processes)
        finally:
            processes.stop()
        expect_every_cell_once(cluster, deployed, published, last)
        moments = publications(cluster, deployed)
    gaps = [
        after - before
        for before, after in itertools.pairwise(moments)
        if began <= after and before <= ended
    ]
    held_back = max(gaps) - EPOCH_SECONDS
    print(
        f"rolling restart of {len(processes.worker_names)} workers in {ended - began:.1f} s, "
        f"{len(gaps)} epochs meanwhile: estimates held back for at most {held_back:.2f} s"
    )
    assert len(gaps) > len(processes.worker_names)
    assert held_back < HELD_BACK_MAX


def restart(name: str, processes: Processes, published: Published) -> None:
    """Restart a worker as an operator would; wait until it is ready and estimates resume."""
    before = processes.said(name, "partitions:")
    processes.signal(name, signal.SIGTERM)
    assert processes.running[name].wait(TIMEOUT) == 0
    processes.keep_alive()
    wait_until(lambda: processes.said(name, "partitions:") > before, f"{name} is ready")
    published.read()
    published.wait_for(len(published.records) + 2, processes)


def closed_epoch(processes: Processes, name: str) -> int:
    assert processes.running[name].wait(TIMEOUT) == 0
    lines = (processes.folder / f"{name}.log").read_text().splitlines()
    return max(int(line.split()[1]) for line in lines if line.startswith("closed "))


def publications(cluster: Cluster, job: DeployedJob) -> list[float]:
    """Return the publication time of each epoch, in seconds since 1970."""
    first = FirstEstimates(job)
    return [
        record.timestamp / 1000
        for record in cluster.read(job.topic(Role.ESTIMATES))
        if first.apply(record.value) is not None
    ]
