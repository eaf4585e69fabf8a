"""Epochs in two lanes on a real broker, with two shuffle workers: every cell is exactly one.

Each of the workers is killed while epochs flow, and both are paused.
"""

from __future__ import annotations

import secrets
import signal
from pathlib import Path

import pytest

from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.connection import Connection
from pipeline.operations.deployments import deploy
from pipeline.operations.status import gather_status
from pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.cell_processes import Processes, Published, expect_every_cell_once
from topics.chunks import decode_chunk
from topics.names import Role

CELLS = 20_000
EPOCHS = 30
PRODUCERS = {"north": (0, 10_000), "south": (10_000, 10_000)}


@pytest.mark.verify
def test_every_cell_is_exactly_one_when_owners_of_lanes_are_killed(
    bootstrap_servers: str, job_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    job = make_job(
        {
            "name": job_name,
            "protocol": cells.NAME,
            "parameters": {"cells": CELLS},
            "epochs": {"count": EPOCHS},
            "shuffle": {"minimum": 1, "producers": 2, "grace": "1h"},
            "topics": {"partitions": 2, "lanes": 2},
        }
    )
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        published = Published(cluster, deployed)
        workers = {"shuffle": 2, "aggregate": 1, "publish": 1}
        processes = Processes(bootstrap_servers, deployed, tmp_path, workers, PRODUCERS)
        try:
            published.wait_for(1, processes)
            processes.signal("shuffle-1", signal.SIGKILL)
            published.wait_for(len(published.records) + 2, processes)
            processes.signal("shuffle-2", signal.SIGKILL)
            published.wait_for(len(published.records) + 2, processes)
            # What it owned goes to the other one, before it wakes up again.
            processes.signal("shuffle-1", signal.SIGSTOP)
            published.wait_for(len(published.records) + 2, processes)
            processes.signal("shuffle-1", signal.SIGCONT)
            processes.signal("aggregate-1", signal.SIGKILL)
            published.wait_for(EPOCHS, processes)
        finally:
            processes.stop()
        expect_every_cell_once(cluster, deployed, published)
        status = gather_status(cluster, deployed, now=0)
        assert status.windows["released"] == EPOCHS
        chunks = [
            decode_chunk(record.value)
            for partition in range(deployed.partitions)
            for record in cluster.read(deployed.topic(Role.SHUFFLED), partition)
        ]
    for lane in (1, 2):
        for epoch in range(1, EPOCHS + 1):
            writings: dict[bytes, int] = {}
            for chunk in chunks:
                if (chunk.instance, chunk.epoch) == (lane, epoch):
                    seen = writings.get(chunk.attempt, 0)
                    writings[chunk.attempt] = seen + chunk.words.messages
            assert CELLS * 0.4 < max(writings.values()) < CELLS * 0.6
