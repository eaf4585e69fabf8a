"""A drain on a real broker: what is open is published without grace, the rest waits for resume."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dpstream.pipeline.connect import connect_producer
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployed_jobs import find_deployed
from dpstream.topics.names import Role
from tests.support.commands import Commands

# Far longer than anything takes: who needs it has failed.
PATIENCE = 60.0
STAGES = ("shuffle", "aggregate", "publish")
JOB = """
name: {name}
protocol: future_rand
parameters: {{epsilon: 2, changes: 2}}
epochs: {{count: 12}}
shuffle: {{minimum: 10, grace: 1h, producers: 2}}
topics: {{partitions: 2}}
"""


def close_epoch(producer: Producer, epoch: int) -> None:
    """Twenty people take part, half of whom have the value 1."""
    users = {f"{producer.name}{number}": number % 2 for number in range(20)}
    producer.enrol(list(users))
    producer.report(epoch, users)
    producer.close(epoch)


def published(dpstream: Commands, job_name: str) -> dict[int, int]:
    """Contributors by epoch."""
    lines = dpstream("estimates", job_name, "--json").output.splitlines()
    return {record["epoch"]: record["contributors"] for record in map(json.loads, lines)}


def phase(dpstream: Commands, job_name: str) -> str:
    jobs = dpstream("list", "--json").json
    return next(str(job["phase"]) for job in jobs if job["job"] == job_name)


def test_what_is_open_is_published_with_who_is_in_and_what_comes_later_waits(
    dpstream: Commands,
    start: Callable[..., subprocess.Popen[str]],
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
) -> None:
    """The south is registered and silent; an hour of grace would pass before a window closes."""
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB.format(name=job_name))
    assert dpstream("deploy", job_file).code == 0
    with ExitStack() as stack:
        north, south = (
            stack.enter_context(
                connect_producer(
                    job_name,
                    name=name,
                    state_directory=tmp_path / name,
                    bootstrap_servers=bootstrap_servers,
                )
            )
            for name in ("north", "south")
        )
        for epoch in (1, 2):
            close_epoch(north, epoch)

        alone = dpstream("drain", job_name, "--timeout", "1s")
        assert alone.code == 1
        assert "no worker of shuffle, aggregate, publish is alive" in alone.errors
        assert "not drained within 1s; the drain goes on without this command" in alone.errors
        assert phase(dpstream, job_name) == "draining"
        waiting = start("drain", job_name)
        assert waiting.stderr is not None
        assert "records of the reports to be finished" in waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        _, errors = waiting.communicate(timeout=PATIENCE)
        assert waiting.returncode == 130
        assert "the drain goes on without this command" in errors
        # What comes after the drain began stays open: the south has not sent it.
        close_epoch(north, 3)

        for stage in STAGES:
            start("run", stage, job_name, "--name", "w1")
        over = dpstream("drain", job_name, "--timeout", "60s")
        assert over.code == 0, over.errors
        assert "is drained: what was open is published" in over.output
        assert phase(dpstream, job_name) == "drained"
        assert published(dpstream, job_name) == {1: 20, 2: 20}
        assert "is drained already" in dpstream("drain", job_name).output

        assert "which was drained, is running" in dpstream("resume", job_name).output
        close_epoch(south, 3)
        deadline = time.monotonic() + PATIENCE
        while len(found := published(dpstream, job_name)) < 3:
            assert time.monotonic() < deadline, found
        assert found == {1: 20, 2: 20, 3: 40}


def test_operators_keys_reach_the_topics_of_a_cluster(
    dpstream: Commands, bootstrap_servers: str, job_name: str, tmp_path: Path
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(JOB.format(name=job_name))
    assert dpstream("deploy", job_file, "--dry-run").code == 0
    with Cluster(Connection((bootstrap_servers,))) as cluster:

        def retention(role: Role) -> str:
            topic = f"{job_name}.{role}"
            return cluster.existing_topics([topic])[topic].configs["retention.ms"]

        assert not cluster.existing_topics([f"{job_name}.{Role.REPORTS}"])
        assert dpstream("deploy", job_file).code == 0
        before = find_deployed(cluster, job_name)
        kept = job_file.read_text().replace("partitions: 2", "partitions: 2, retention: 3d")
        job_file.write_text(kept.replace("grace: 1h", "grace: 2h"))
        dry = dpstream("deploy", job_file, "--dry-run", "--json").json
        assert dry["step"] == "change"
        assert retention(Role.REPORTS) == f"{7 * 86_400_000}"
        said = dpstream("deploy", job_file)
        assert said.code == 0, said.errors
        assert retention(Role.REPORTS) == retention(Role.SHUFFLED) == f"{3 * 86_400_000}"
        assert retention(Role.DEAD_LETTERS) == f"{3 * 86_400_000}"
        assert retention(Role.MANIFESTS) == "-1"
        after = find_deployed(cluster, job_name)
        assert (after.deployment, after.shuffle.grace) == (before.deployment, 7200.0)
        found = cluster.existing_topics([f"{job_name}.{Role.REPORTS}"])
        (topic,) = found.values()
        assert (topic.partitions, topic.replication) == (2, 1)
        assert topic.configs["message.timestamp.type"] == "LogAppendTime"
