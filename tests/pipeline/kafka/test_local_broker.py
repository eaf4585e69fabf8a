"""Test decisions of the local broker that do not need a running broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.cli.command_errors import explain
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.kafka.local_kafka import LocalKafka, LocalKafkaError


def test_start_on_another_port_is_rejected_while_the_broker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server.properties").write_text(
        "advertised.listeners=PLAINTEXT://127.0.0.1:20123\n"
    )
    broker = LocalKafka(tmp_path)
    monkeypatch.setattr(broker, "_serves", lambda timeout: True)
    assert broker.start().bootstrap_servers == "127.0.0.1:20123"
    assert broker.start(port=20123).bootstrap_servers == "127.0.0.1:20123"
    with pytest.raises(
        LocalKafkaError, match="is already running on port 20123: stop it"
    ) as caught:
        broker.start(port=9092)
    known = explain(caught.value)
    assert known is not None
    assert known[1] == FAILED
