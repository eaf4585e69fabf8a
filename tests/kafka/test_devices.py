"""Test producers on a real broker: a single device, a lost directory, and a broker outage."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from pathlib import Path

import pytest

from dpstream.pipeline.connect import connect_producer, open_producer
from dpstream.pipeline.demo.thermostat import report_values
from dpstream.pipeline.devices.producer import ProducerError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.operations.deployments import deploy
from dpstream.topics.batches import decode_batch, decode_punctuation
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from tests.support.new_jobs import new_job


def deployed(cluster: Cluster, name: str) -> DeployedJob:
    job = new_job(
        name, "future_rand", {"epsilon": 1.0, "max_changes": 2}, count=8, minimum=1, partitions=1
    )
    return deploy(cluster, job, deployment=secrets.token_bytes(16), now=0)


def raw_records(cluster: Cluster, job: DeployedJob) -> list[bytes]:
    return [record.value for record in cluster.read(job.topic(Role.REPORTS))]


def test_single_device_example_runs(
    cluster: Cluster,
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPSTREAM_BOOTSTRAP_SERVERS", bootstrap_servers)
    job = deployed(cluster, job_name)
    assert report_values(job_name, "thermostat", tmp_path / "state", [1, 1, 0]) == 3
    assert report_values(job_name, "thermostat", tmp_path / "state", [0, 0, 1, 1, 1]) == 8
    records = raw_records(cluster, job)
    epochs = [decode_punctuation(r).epoch for r in records if kind_of(r) is RecordType.PUNCTUATION]
    assert epochs == list(range(1, 9))
    words = [
        int(word)
        for record in records
        if kind_of(record) is RecordType.BATCH
        for word in decode_batch(record).words.values[:, 0]
    ]
    (order,) = {word // 2 for word in words}
    assert len(words) == 8 >> order


def test_producer_needs_another_name_when_its_state_is_lost(
    cluster: Cluster, bootstrap_servers: str, job_name: str, tmp_path: Path
) -> None:
    """All reports under the name of the first registration would be rejected."""
    job = deployed(cluster, job_name)
    with open_producer(cluster, job, tmp_path / "first", name="gateway"):
        pass
    with (
        pytest.raises(ProducerError, match="already registered with another state directory"),
        connect_producer(
            job_name,
            name="gateway",
            state_directory=tmp_path / "second",
            bootstrap_servers=bootstrap_servers,
        ),
    ):
        pass
    with open_producer(cluster, job, tmp_path / "first", name="gateway") as producer:
        assert producer.closed_epoch == 0


@pytest.mark.verify
def test_producer_waits_for_an_unavailable_broker(tmp_path: Path, job_name: str) -> None:
    broker = LocalKafka(tmp_path / "kafka", brief=True)
    try:
        broker.start()
        status = broker.status()
        assert status.bootstrap_servers is not None
        assert status.pid is not None
        notices: list[str] = []
        away = threading.Event()

        def notify(message: str) -> None:
            notices.append(message)
            away.set()

        with Cluster(Connection((status.bootstrap_servers,))) as cluster:
            job = deployed(cluster, job_name)
            with open_producer(
                cluster, job, tmp_path / "state", name="gateway", notify=notify
            ) as producer:
                producer.enroll([f"user {number}" for number in range(100)])
                producer.close(1)
                os.kill(status.pid, signal.SIGKILL)
                restart = threading.Thread(target=lambda: away.wait(60) and broker.start())
                restart.start()
                producer.close(2)
                restart.join()
                punctuated = [
                    decode_punctuation(record).epoch
                    for record in raw_records(cluster, job)
                    if kind_of(record) is RecordType.PUNCTUATION
                ]
        assert punctuated == [1, 2]
        assert [message.startswith("Kafka is back") for message in notices] == [False, True]
    finally:
        broker.stop()
