"""Test that any one of three brokers can fail without loss of acknowledged records or offsets."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.topic_spread import metadata_of_brokers
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.cell_processes import Processes, Published, expect_every_cell_once
from tests.support.new_jobs import new_job
from tests.support.three_brokers import ThreeBrokers

CELLS = 20_000
EPOCHS = 48
PARTITIONS = 4
PRODUCERS = {"north": (0, 15_000), "south": (15_000, 5_000)}
# Seconds, far more than a leader election, far less than the clients' default metadata age.
READ_AGAIN = 120.0
WORKERS = {"shuffle": 2, "aggregate": 1, "publish": 1}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with ThreeBrokers(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.mark.verify
def test_deploy_succeeds_when_brokers_receive_topic_metadata_late(
    brokers: ThreeBrokers,
) -> None:
    """The next request might go to a broker that does not know the topics yet."""
    for number in range(8):
        job = new_job(
            f"many-{number}",
            "future_rand",
            {"epsilon": 1.0, "max_changes": 2},
            epochs={"count": 8},
            topics={"partitions": 16, "replication": 3},
        )
        with Cluster(brokers.connection) as cluster:
            deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
            names = [deployed.topic(role) for role in deployed.start_offsets]
            known = metadata_of_brokers(cluster.admin, names)
            assert len(known) == 3
            for topics in known.values():
                assert not any(topics[name]["error_code"] for name in names)
        with Cluster(brokers.connection) as another:
            assert find_deployed(another, job.name) == deployed


@pytest.mark.verify
def test_every_report_counts_once_when_a_broker_is_killed(
    brokers: ThreeBrokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    job = new_job(
        "cells",
        cells.NAME,
        {"cells": CELLS},
        epochs={"count": EPOCHS},
        shuffle={"minimum": 1, "producers": 2, "grace": "1h"},
        topics={"partitions": PARTITIONS, "replication": 3},
    )
    with Cluster(brokers.connection) as cluster:
        deployed = deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)
        processes = Processes(brokers.servers, deployed, tmp_path, WORKERS, PRODUCERS)
        published = Published(cluster, deployed)
        topics = [deployed.topic(role) for role in deployed.start_offsets]
        try:
            published.wait_for(EPOCHS // 4, processes)
            ((busiest, led),) = Counter(brokers.leaders(topics).values()).most_common(1)
            assert led >= 1
            assert len(published.records) < EPOCHS, "the run ends before a broker is killed"
            brokers.kill(busiest)
            published.wait_for(EPOCHS, processes)
        finally:
            processes.stop()
        led_by = brokers.leaders(topics)
        assert busiest not in led_by.values(), "the broker stays down"
        expect_every_cell_once(cluster, deployed, published)


@pytest.mark.slow
@pytest.mark.verify
def test_reader_resumes_when_a_killed_leader_returns(tmp_path: Path) -> None:
    topic = "read"
    with (
        ThreeBrokers(tmp_path / "kafka") as brokers,
        Cluster(brokers.connection, timeout=5.0) as reader,
        Cluster(brokers.connection) as writer,
    ):
        admin = KafkaAdminClient(**brokers.connection.kafka_python())
        admin.create_topics([NewTopic(topic, 1, 3)])
        admin.close()
        writer.append(topic, b"before")
        assert [record.value for record in reader.read(topic)] == [b"before"]
        leader = brokers.leaders([topic])[topic, 0]
        brokers.kill(leader)
        brokers.start(leader)
        last = writer.append(topic, b"after")
        read: list[bytes] = []
        deadline = time.monotonic() + READ_AGAIN
        while not read:
            assert time.monotonic() < deadline, "the reader does not find the leader"
            try:
                read = [record.value for record in reader.read(topic, start=last)]
            except KafkaError:
                continue
        assert read == [b"after"]
