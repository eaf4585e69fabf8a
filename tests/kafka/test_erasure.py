"""Test that raw reports leave the broker's disk once they are aggregated or handled."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.connect import open_producer
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.dead_letter_log import discard
from dpstream.pipeline.operations.deployments import deploy
from dpstream.topics.batches import decode_batch
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason
from tests.support.new_jobs import new_job
from tests.support.processes import TIMEOUT, start_command, wait_until

USERS = [f"user{number}" for number in range(150)]


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Broker that looks for deletable data twice a second instead of every 5 minutes."""
    kafka = LocalKafka(
        tmp_path_factory.mktemp("eager"), {"log.retention.check.interval.ms": "500"}, brief=True
    )
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture
def cluster(eager: LocalKafka) -> Iterator[Cluster]:
    servers = eager.status().bootstrap_servers
    assert servers is not None
    with Cluster(Connection((servers,))) as opened:
        yield opened


def holding(kafka: LocalKafka, needle: bytes) -> list[str]:
    """Return the broker's files that contain `needle`, including deleted files still open."""
    found = []
    for path in kafka.directory.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        if needle in content:
            found.append(str(path.relative_to(kafka.directory)))
    return found


def test_deleted_reports_disappear_from_every_broker_file(
    eager: LocalKafka, cluster: Cluster, tmp_path: Path, job_name: str
) -> None:
    """Segments last a second instead of an hour; all other settings are as deployed."""
    job = new_job(
        job_name, "future_rand", {"epsilon": 1.0, "max_changes": 2}, count=8, partitions=1
    )
    deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
    reports, letters = deployed.topic(Role.REPORTS), deployed.topic(Role.DEAD_LETTERS)
    for topic in (reports, letters):
        assert cluster.existing_topics([topic])[topic].configs["segment.ms"] == "3600000"
        cluster.alter_topics({topic: {"segment.ms": "1000"}})
    with open_producer(cluster, deployed, tmp_path / "north", name="north") as north:
        north.enroll(USERS)
        north.report(1, dict.fromkeys(USERS, 1))
        north.close(1)
        report = decode_batch(next(cluster.read(reports)).value).batch
        rejected = secrets.token_bytes(16)
        letter = DeadLetter(reports, 0, 0, Reason.UNREADABLE, "why", rejected)
        value, headers = letter.to_record()
        cluster.producer.send(letters, value, headers=headers).get(TIMEOUT)
        assert any(reports in path for path in holding(eager, report)), "the report is on the disk"
        assert any(letters in path for path in holding(eager, rejected))

        (servers,) = cluster.connection.bootstrap_servers
        command = ("run", "shuffle", job_name, "--name", "w1")
        worker = start_command(*command, servers=servers, home=tmp_path / "home")
        try:
            end = cluster.end_offsets(reports)
            wait_until(lambda: cluster.start_offsets(reports) == end, "the window is finished")
            # The next record rolls the segment.
            north.close(2)
            wait_until(lambda: not holding(eager, report), "the report is gone from every file")
        finally:
            worker.terminate()
            worker.wait(TIMEOUT)
    assert discard(cluster, deployed) == 1
    wait_until(lambda: not holding(eager, rejected), "the dead letter is gone from every file")
