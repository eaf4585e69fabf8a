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


@pytest.mark.parametrize("brief", [True, False])
def test_java_is_asked_for_less_where_the_broker_is_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief: bool
) -> None:
    java = tmp_path / "java"
    java.write_text(
        '#!/bin/sh\ncase "$*" in *StorageTool*) mkdir -p data; touch data/meta.properties;; '
        f'*) echo "$@" >{tmp_path}/asked; exit 1;; esac\n'
    )
    java.chmod(0o755)
    monkeypatch.setenv("DPSTREAM_JAVA", str(java))
    monkeypatch.setattr("dpstream.pipeline.kafka.local_kafka.broker.kafka_jars", lambda say: ())
    with pytest.raises(LocalKafkaError, match="ended while it was starting"):
        LocalKafka(tmp_path / "kafka").start(brief=brief)
    assert ("-XX:TieredStopAtLevel=1 " in (tmp_path / "asked").read_text()) is brief
