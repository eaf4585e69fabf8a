"""Test that the local broker is a real Kafka, survives kills, and leaves other processes alone."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from dpstream.pipeline.kafka.connection import Connection, find_cluster
from dpstream.pipeline.kafka.local_kafka import KafkaStatus, LocalKafka, LocalKafkaError


def connection(status: KafkaStatus) -> Connection:
    assert status.bootstrap_servers is not None
    return Connection((status.bootstrap_servers,))


def create_topic(where: Connection, topic: str) -> None:
    admin = KafkaAdminClient(**where.kafka_python())
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    admin.close()


def append(where: Connection, topic: str, value: bytes) -> None:
    producer = KafkaProducer(**where.kafka_python())
    producer.send(topic, value).get(timeout=30)
    producer.close()


def first_value(where: Connection, topic: str) -> bytes:
    consumer = KafkaConsumer(
        topic, **where.kafka_python(), auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    value: bytes = next(consumer).value
    consumer.close()
    return value


def kill(broker: LocalKafka) -> None:
    pid = broker.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalKafka]:
    kafka = LocalKafka(tmp_path / "a home, with: odd=characters" / "kafka", brief=True)
    yield kafka
    kafka.stop()


def test_broker_starts_and_serves_and_stops(own: LocalKafka, job_name: str) -> None:
    assert own.status() == KafkaStatus(False, None, None, own.directory, own.log_path)
    assert own.logs() == []
    assert not own.stop()
    assert not own.directory.parent.exists(), "a status query creates nothing"

    steps: list[str] = []
    started = own.start(on_progress=steps.append)
    assert started.running
    assert started == own.status()
    assert steps[-1] == "starting Apache Kafka"
    assert own.directory.stat().st_mode & 0o077 == 0, "only its owner has access"
    assert "-XX:TieredStopAtLevel=1" in psutil.Process(started.pid).cmdline()

    # A second start, even concurrent or by another object, finds the running broker.
    assert LocalKafka(own.directory).start() == started

    create_topic(connection(started), job_name)
    append(connection(started), job_name, b"kept")
    kill(own)
    assert LocalKafka(own.directory).start().pid != started.pid
    again = own.status()
    assert again.bootstrap_servers == started.bootstrap_servers
    assert first_value(connection(again), job_name) == b"kept"

    assert len(own.logs(3)) == 3
    assert any("Kafka Server started" in line for line in own.logs(10_000))
    assert own.stop()
    assert not own.status().running
    assert own.status().bootstrap_servers == started.bootstrap_servers, "stable address"
    assert not own.stop()


def test_concurrent_starts_share_one_private_broker(
    broker: LocalKafka, own: LocalKafka, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(own.directory.parent))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    found: list[Connection] = []
    seekers = [
        threading.Thread(target=lambda: found.append(find_cluster(start_if_missing=True)))
        for _ in range(2)
    ]
    for seeker in seekers:
        seeker.start()
    for seeker in seekers:
        seeker.join()
    servers = own.status().bootstrap_servers
    assert [connection.bootstrap_servers for connection in found] == [(servers,)] * 2
    assert find_cluster().bootstrap_servers == (servers,), "found without another start"

    assert servers != broker.status().bootstrap_servers
    create_topic(found[0], job_name)
    admin = KafkaAdminClient(**connection(broker.status()).kafka_python())
    assert job_name not in admin.list_topics()
    admin.close()
    own.stop()
    assert broker.status().running


def test_recycled_pid_is_not_mistaken_for_the_broker(own: LocalKafka) -> None:
    # The PID file of a dead broker contains the PID of an unrelated process.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        own.directory.mkdir(parents=True)
        (own.directory / "pid").write_text(f"{stranger.pid}\n")
        assert not own.status().running
        assert not own.stop()
        assert stranger.poll() is None, "the unrelated process still runs"
        stranger.communicate(b"\n")
    assert stranger.returncode == 0


def test_start_error_reports_an_occupied_port(own: LocalKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalKafkaError, match=rf"another process listens on 127.0.0.1:{port}"):
            own.start(port=port)
    assert not own.status().running


def test_start_waits_for_the_port_of_a_stopping_broker(
    own: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dying:
        port = dying.getsockname()[1]
        own.directory.mkdir(parents=True)
        (own.directory / "server.properties").write_text(
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n"
        )
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            dying.close()

        monkeypatch.setattr("dpstream.pipeline.kafka.local_kafka.broker.time.sleep", sleep)
        assert own._choose_port(None) == port
    assert len(waited) == 1


def test_failed_broker_states_the_reason_and_leaves_no_process(own: LocalKafka) -> None:
    broken = LocalKafka(own.directory, {"authorizer.class.name": "org.example.Missing"}, brief=True)
    with pytest.raises(
        LocalKafkaError, match=r"(?s)exited during startup.*org\.example\.Missing"
    ) as caught:
        broken.start()
    assert str(broken.log_path) in str(caught.value)
    assert not broken.status().running


def test_interrupted_start_leaves_no_process(
    own: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int | None] = []

    def interrupt(port: int) -> str:
        launched.append(own.status().pid)
        raise KeyboardInterrupt

    monkeypatch.setattr("dpstream.pipeline.kafka.local_kafka.broker._cluster_at", interrupt)
    with pytest.raises(KeyboardInterrupt):
        own.start()
    assert launched[0] is not None
    assert not psutil.pid_exists(launched[0])
    assert not own.status().running


def test_broker_runs_on_the_configured_java(
    own: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\necho "Exception: the chosen java was asked"\nexit 1\n')
    java.chmod(0o755)
    monkeypatch.setenv("DPSTREAM_JAVA", str(java))
    with pytest.raises(LocalKafkaError, match="the chosen java was asked"):
        own.start()
    monkeypatch.setenv("DPSTREAM_JAVA", str(tmp_path / "nothing"))
    with pytest.raises(LocalKafkaError, match="DPSTREAM_JAVA"):
        own.start()
