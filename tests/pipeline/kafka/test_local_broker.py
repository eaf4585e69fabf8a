"""The local broker without a broker: what is decided before one is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.cli.errors import explain
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.kafka.local_kafka import LocalKafka, LocalKafkaError


def test_a_broker_that_runs_on_another_port_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.properties").write_text(
        "advertised.listeners=PLAINTEXT://127.0.0.1:20123\n"
    )
    broker = LocalKafka(tmp_path)
    monkeypatch.setattr(broker, "_serves", lambda timeout: True)
    assert broker.start().bootstrap_servers == "127.0.0.1:20123"
    assert broker.start(port=20123).bootstrap_servers == "127.0.0.1:20123"
    with pytest.raises(LocalKafkaError, match="runs already, on port 20123: stop it first") as said:
        broker.start(port=9092)
    known = explain(said.value)
    assert known is not None
    assert known[1] == FAILED


def test_java_reads_names_of_files_in_any_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With LC_ALL=C it would not find a folder with an umlaut."""
    monkeypatch.setenv("LC_ALL", "C")
    folder = tmp_path / "h\u00f6me"
    folder.mkdir()
    broker = LocalKafka(folder)
    with (tmp_path / "log").open("wb") as log:
        broker._format(["/bin/sh", "-c", "echo $LC_ALL"], log.fileno())
    assert (tmp_path / "log").read_text() == "C.UTF-8\n"
    started: list[dict[str, str]] = []

    def spawn(path: str, arguments: list[str], environment: dict[str, str], **more: object) -> int:
        started.append(environment)
        return 1

    monkeypatch.setattr("os.posix_spawn", spawn)
    monkeypatch.setattr(broker, "_format", lambda java, log: None)
    monkeypatch.setenv("DPSTREAM_JAVA", "/bin/true")
    broker._launch((), None, ())
    assert started[0]["LC_ALL"] == "C.UTF-8"


def test_a_broker_that_moves_to_another_port_says_what_waits_at_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = LocalKafka(tmp_path)
    monkeypatch.setattr("dpstream.pipeline.kafka.local_kafka.broker.kafka_jars", lambda told: ())
    monkeypatch.setattr(broker, "_launch", lambda jars, port, options: broker._write_settings(port))

    def start(port: int) -> list[str]:
        serves = iter([False, True])
        monkeypatch.setattr(broker, "_serves", lambda timeout: next(serves))
        steps: list[str] = []
        broker.start(port, steps.append)
        return steps

    assert start(20123) == start(20123) == ["starting Apache Kafka"]
    *_, last = start(20124)
    assert last.startswith("until now it was at 127.0.0.1:20123: what still runs waits")
    assert last.endswith("127.0.0.1:20124")
