"""Test that the last user of the temporary local broker is recognized as the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dpstream.pipeline.kafka.local_kafka import KafkaStatus, LocalKafka
from dpstream.pipeline.kafka.local_kafka.broker_users import BrokerUsers, running_broker
from dpstream.pipeline.operations.up import managed_broker

HOLD = """
import sys
import time
from pathlib import Path
from dpstream.pipeline.kafka.local_kafka.broker_users import BrokerUsers
users = BrokerUsers(Path(sys.argv[1]))
print("here", flush=True)
sys.stdin.read()
"""


def test_killed_process_no_longer_counts_as_a_user_of_the_broker(tmp_path: Path) -> None:
    mine = BrokerUsers(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"here\n"
        assert not mine.leave()
        again = BrokerUsers(tmp_path)
        os.kill(other.pid, signal.SIGKILL)
    assert again.leave()


def test_marker_file_identifies_the_broker_to_stop(tmp_path: Path) -> None:
    users = BrokerUsers(tmp_path)
    assert not users.is_marked(17)
    users.mark.write_text("17")
    assert users.is_marked(17)
    assert not users.is_marked(18)
    assert not users.is_marked(None)
    users.leave()


class Broker:
    def __init__(self, pid: int | None) -> None:
        self.pid = pid
        self.stopped: list[float] = []
        self.log_path = Path("broker.log")
        self.directory = Path()

    def status(self) -> KafkaStatus:
        return KafkaStatus(self.pid is not None, self.pid, "127.0.0.1:1", Path(), self.log_path)

    def start(self, **options: object) -> KafkaStatus:
        self.pid = self.pid or 17
        return self.status()

    def stop(self, grace: float) -> bool:
        self.stopped.append(grace)
        self.pid = None
        return True


def keep(monkeypatch: pytest.MonkeyPatch, folder: Path, broker: Broker) -> None:
    """Run a manager that exits as soon as the broker runs."""

    def leave(seconds: float) -> None:
        if seconds == managed_broker._CHECK_SECONDS:
            raise SystemExit(0)
        time.sleep(seconds)

    monkeypatch.setattr(managed_broker, "LocalKafka", lambda folder, **options: broker)
    monkeypatch.setattr(managed_broker, "kafka_folder", lambda: folder)
    monkeypatch.setattr(managed_broker, "follow", lambda timeout: None)
    monkeypatch.setattr(
        managed_broker, "time", SimpleNamespace(sleep=leave, monotonic=time.monotonic)
    )
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    with pytest.raises(SystemExit):
        managed_broker.main()


def test_last_manager_stops_a_broker_that_any_manager_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broker = Broker(None)
    page = BrokerUsers(tmp_path)
    # The manager that started it exits while another one, whose page stays open, uses it.
    keep(monkeypatch, tmp_path, broker)
    assert broker.stopped == []
    assert page.leave()
    # The manager that found it running is the last.
    keep(monkeypatch, tmp_path, broker)
    assert len(broker.stopped) == 1


def test_broker_that_was_already_running_keeps_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    by_hand = Broker(99)
    keep(monkeypatch, tmp_path, by_hand)
    assert by_hand.stopped == []


@pytest.mark.parametrize(
    ("pid", "others", "stopped"),
    [(None, False, 1), (None, True, 0), (99, False, 0)],
    ids=["started here", "started here and used by others", "started by hand"],
)
def test_broker_for_results_is_stopped_by_its_last_user(
    tmp_path: Path, pid: int | None, others: bool, stopped: int
) -> None:
    broker = Broker(pid)
    broker.directory = tmp_path
    with running_broker(cast(LocalKafka, broker), print):
        assert broker.pid == (pid or 17)
        other = BrokerUsers(tmp_path) if others else None
    assert len(broker.stopped) == stopped
    if other is not None:
        assert other.leave()
