"""Every cell is exactly one, on a real broker, whatever is killed and paused.

Two workers of every stage and two producers; one of them, or the broker, is killed with SIGKILL
again and again while epochs flow, and workers are stopped for longer than the group waits for them.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from kafka.errors import KafkaError
from numpy.typing import NDArray

from pipeline.cluster import Cluster, ClusterError
from pipeline.connection import Connection
from pipeline.deployed_job import DeployedJob
from pipeline.deployments import deploy
from pipeline.estimate_records import EstimateRecord
from pipeline.follow import EstimateReader
from pipeline.jobs import make_job
from pipeline.local_kafka import LocalKafka
from pipeline.partial_log import PartialLog
from pipeline.protocols import PROTOCOLS
from tests.support import cells
from topics.names import Role

EPOCHS = 96
CELLS = 65_000
# More than one batch and more than one chunk for every epoch.
PRODUCERS = {"north": (0, 40_000), "south": (40_000, 25_000)}
STAGES = ("shuffle", "aggregate", "publish")
KILLS = 22
PATIENCE = 180.0


@dataclass
class Processes:
    """Processes by name, each started again when it is found dead."""

    servers: str
    job: DeployedJob
    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)

    @property
    def names(self) -> list[str]:
        return [*(f"{stage}-{number}" for stage in STAGES for number in (1, 2)), *PRODUCERS]

    def keep_alive(self) -> None:
        """Start what is not running; a producer that has reached the end stays ended."""
        for name in self.names:
            process = self.running.get(name)
            if process is not None and process.poll() is None:
                continue
            if process is not None and process.returncode == 0 and name in PRODUCERS:
                self.finished.add(name)
            if name not in self.finished:
                self.running[name] = self._start(name)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        what = "producer" if name in PRODUCERS else name.rpartition("-")[0]
        script = Path(__file__).with_name("cells_process.py")
        numbers = [str(number) for number in PRODUCERS.get(name, ())]
        arguments = [what, self.job.name, name, self.servers, str(self.folder / name), *numbers]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal a process if it still runs."""
        if self.running[name].poll() is None:
            os.kill(self.running[name].pid, number)

    def stop(self) -> None:
        """Kill everything."""
        for process in self.running.values():
            process.kill()
            process.wait()

    def logs(self) -> str:
        """The last lines of everybody, for a failure's message."""
        tails = (
            f"--- {name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-8:])
            for name in self.names
            if (path := self.folder / f"{name}.log").exists()
        )
        return "\n".join(tails)


class Published:
    """The estimates so far, read through a broker that may be away."""

    def __init__(self, cluster: Cluster, job: DeployedJob) -> None:
        self._reader = EstimateReader(cluster, job)
        self.records: dict[int, EstimateRecord] = {}

    def wait_for(self, count: int, processes: Processes) -> None:
        """Wait until so many epochs are published, starting again whoever dies meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while len(self.records) < count:
            processes.keep_alive()
            try:
                self.records.update({record.epoch: record for record in self._reader.read()})
            except (KafkaError, ClusterError):
                continue
            assert time.monotonic() < deadline, (
                f"{len(self.records)} epochs after {PATIENCE} s, waiting for {count}\n"
                + processes.logs()
            )


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
        killed = survive_accidents(own_broker, Processes(servers, deployed, tmp_path), published)
        counts = read_counts(cluster, deployed)
        assert not list(cluster.read(deployed.topic(Role.DEAD_LETTERS)))
    assert killed >= 20
    assert sorted(published.records) == list(range(1, EPOCHS + 1))
    wrong = np.argwhere(counts[1:] != 1)
    assert not len(wrong), f"(epoch - 1, cell) not exactly 1: {wrong[:10]}, {len(wrong)} in all"
    for record in published.records.values():
        assert record.headline is not None
        assert (record.headline.low, record.headline.high) == (1.0, 1.0)
        assert (record.headline.value, record.contributors) == (CELLS, CELLS)


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


def read_counts(cluster: Cluster, job: DeployedJob) -> NDArray[np.int64]:
    """Reports by epoch and cell, from the first complete partial of every epoch."""
    counts = cells.CellsAggregator(cells.CellsLaw(CELLS, EPOCHS))

    def merge(epoch: int, payload: bytes) -> None:
        counts.merge(cells.CellsAggregator.from_bytes(counts.law, payload))

    log = PartialLog(job.deployment, job.fingerprint, merge)
    for record in cluster.read(job.topic(Role.PARTIALS)):
        log.apply(record)
    return counts.counts
