"""Test two parallel shufflers on a real broker: reports count once; neither sees all.

One shuffler is killed while epochs are reported.
"""

from __future__ import annotations

import secrets
import signal
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.status.collection import gather_status
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.topic_uses import stages_of
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.names import Role
from tests.support import cells
from tests.support.cell_processes import Processes, Published, expect_every_cell_once
from tests.support.new_jobs import new_job

CELLS = 20_000
EPOCHS = 14
PRODUCERS = {"north": (0, 20_000)}


@pytest.mark.verify
def test_every_report_counts_once_when_a_parallel_shuffler_is_killed(
    bootstrap_servers: str, job_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    job = new_job(
        job_name,
        cells.NAME,
        {"cells": CELLS},
        epochs={"count": EPOCHS},
        shuffle={"minimum": 1, "producers": 1, "grace": "1h", "instances": 2},
    )
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        assert list(stages_of(deployed)) == ["shuffle", "instance-2", "aggregate", "publish"]
        published = Published(cluster, deployed)
        workers = dict.fromkeys(stages_of(deployed), 1)
        processes = Processes(bootstrap_servers, deployed, tmp_path, workers, PRODUCERS)
        try:
            published.wait_for(1, processes)
            processes.signal("instance-2-1", signal.SIGKILL)
            published.wait_for(EPOCHS, processes)
        finally:
            processes.stop()
        expect_every_cell_once(cluster, deployed, published)
        status = gather_status(cluster, deployed, now=0)
        assert [stage.stage for stage in status.stages] == list(stages_of(deployed))
        assert status.windows["released"] == EPOCHS
        chunks = [
            decode_chunk(record.value)
            for partition in range(deployed.topics.partitions)
            for record in cluster.read(deployed.topic(Role.SHUFFLED), partition)
        ]
    # By the law of large numbers, each shuffler has about half, and far from all reports.
    for instance in (1, 2):
        for epoch in range(1, EPOCHS + 1):
            writings: dict[bytes, int] = {}
            for chunk in chunks:
                if (chunk.instance, chunk.epoch) == (instance, epoch):
                    seen = writings.get(chunk.attempt, 0)
                    writings[chunk.attempt] = seen + chunk.words.messages
            assert CELLS * 0.4 < max(writings.values()) < CELLS * 0.6
