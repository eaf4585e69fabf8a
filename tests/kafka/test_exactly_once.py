"""Every cell is exactly one, on a real broker, whatever is killed and paused.

Two workers of every stage and two producers; one of them, or the broker, is killed with SIGKILL
again and again while epochs flow, and workers are stopped for longer than the group waits for them.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.connection import Connection
from pipeline.kafka.local_kafka import LocalKafka
from pipeline.operations.deployments import deploy
from pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.cell_processes import Processes, Published, expect_every_cell_once

EPOCHS = 96
CELLS = 65_000
# More than one batch and more than one chunk for every epoch.
PRODUCERS = {"north": (0, 40_000), "south": (40_000, 25_000)}
STAGES = ("shuffle", "aggregate", "publish")
KILLS = 22


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker for this test alone, which kills it."""
    broker = LocalKafka(tmp_path / "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def kill_broker(broker: LocalKafka) -> None:
    """Kill the broker, and start it again on its data."""
    pid = broker.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    broker.start()


def test_every_cell_is_exactly_one(
    own_broker: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    servers = own_broker.status().bootstrap_servers
    assert servers is not None
    job = make_job(
        {
            "name": "cells",
            "protocol": cells.NAME,
            "parameters": {"cells": CELLS},
            "epochs": {"count": EPOCHS},
            "shuffle": {"minimum": 1, "producers": 2, "grace": "1h"},
        }
    )
    with Cluster(Connection((servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        published = Published(cluster, deployed)
        processes = Processes(servers, deployed, tmp_path, dict.fromkeys(STAGES, 2), PRODUCERS)
        killed = survive_accidents(own_broker, processes, published)
        expect_every_cell_once(cluster, deployed, published)
    assert killed >= 20


def survive_accidents(broker: LocalKafka, processes: Processes, published: Published) -> int:
    """Let the job run to its end through all accidents; returns how many were kills."""
    chance = random.Random(20261121)
    accidents = ["broker"] * 3 + ["pause"] * 3 + ["kill"] * (KILLS - 3)
    chance.shuffle(accidents)
    killed = 0
    try:
        published.wait_for(1, processes)
        for accident in accidents:
            seen = len(published.records)
            if accident == "broker":
                kill_broker(broker)
            elif accident == "pause":
                # Eight epochs more cannot be published before others have its partitions.
                name = chance.choice([n for n in processes.names if n not in PRODUCERS])
                processes.signal(name, signal.SIGSTOP)
                published.wait_for(min(seen + 8, EPOCHS), processes)
                processes.signal(name, signal.SIGCONT)
            else:
                name = chance.choice(sorted(set(processes.names) - processes.finished))
                processes.signal(name, signal.SIGKILL)
            killed += accident != "pause"
            published.wait_for(min(seen + 2, EPOCHS), processes)
        published.wait_for(EPOCHS, processes)
    finally:
        processes.stop()
    return killed
