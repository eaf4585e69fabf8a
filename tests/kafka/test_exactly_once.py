"""Test on a real broker that every report is counted exactly once under kills and pauses.

Two workers of every stage and two producers run. While epochs are reported, a random process or the
broker is repeatedly killed with SIGKILL, and workers are suspended for longer than their group
waits for them.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.cell_processes import Processes, Published, expect_every_cell_once
from tests.support.new_jobs import new_job

CELLS = 65_000
# Every epoch has more than one batch and more than one chunk.
PRODUCERS = {"north": (0, 40_000), "south": (40_000, 25_000)}
STAGES = ("shuffle", "aggregate", "publish")


@dataclass(frozen=True)
class Scenario:
    """Numbers of faults during a run of `epochs`; pauses are long enough for a takeover."""

    epochs: int
    workers: int
    brokers: int
    pauses: int


SHORT = Scenario(epochs=20, workers=3, brokers=1, pauses=1)
LONG = Scenario(epochs=96, workers=19, brokers=3, pauses=3)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalKafka]:
    broker = LocalKafka(tmp_path / "kafka", brief=True)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def kill_broker(broker: LocalKafka) -> None:
    pid = broker.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    broker.start()


@pytest.mark.parametrize(
    "scenario", [SHORT, pytest.param(LONG, marks=pytest.mark.verify)], ids=["short", "long"]
)
def test_every_report_counts_once_under_kills_and_pauses(
    scenario: Scenario, own_broker: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    servers = own_broker.status().bootstrap_servers
    assert servers is not None
    job = new_job(
        "cells",
        cells.NAME,
        {"cells": CELLS},
        epochs={"count": scenario.epochs},
        shuffle={"minimum": 1, "producers": 2, "grace": "1h"},
    )
    with Cluster(Connection((servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        published = Published(cluster, deployed)
        processes = Processes(servers, deployed, tmp_path, dict.fromkeys(STAGES, 2), PRODUCERS)
        killed = survive_accidents(scenario, own_broker, processes, published)
        expect_every_cell_once(cluster, deployed, published)
    assert killed == scenario.workers + scenario.brokers


def survive_accidents(
    scenario: Scenario, broker: LocalKafka, processes: Processes, published: Published
) -> int:
    """Run the job to its end through all faults, and return the number of kills."""
    chance = random.Random(20261121)
    accidents = (
        ["broker"] * scenario.brokers + ["pause"] * scenario.pauses + ["kill"] * scenario.workers
    )
    chance.shuffle(accidents)
    killed = 0
    try:
        published.wait_for(1, processes)
        for accident in accidents:
            seen = len(published.records)
            if accident == "broker":
                kill_broker(broker)
            elif accident == "pause":
                # Eight more epochs require that other workers take over its partitions.
                name = chance.choice([n for n in processes.names if n not in PRODUCERS])
                processes.signal(name, signal.SIGSTOP)
                published.wait_for(min(seen + 8, scenario.epochs), processes)
                processes.signal(name, signal.SIGCONT)
            else:
                name = chance.choice(sorted(set(processes.names) - processes.finished))
                processes.signal(name, signal.SIGKILL)
            killed += accident != "pause"
            published.wait_for(min(seen + 2, scenario.epochs), processes)
        published.wait_for(scenario.epochs, processes)
    finally:
        processes.stop()
    return killed
