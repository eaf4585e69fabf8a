"""Test ``dpstream run`` without a job: rejected options, and detection of running workers."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.cli import cluster_and_jobs
from dpstream.pipeline.kafka.cluster_errors import BrokerAwayError
from dpstream.pipeline.state import FolderLock, supervisor_folder
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    use_memory_cluster(monkeypatch)
    return Commands(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shuffle", "students", "--jobs", "*"), "--jobs and --noise-keys require run STAGE"),
        (("shuffle", "--noise-key", "key"), "--noise-key is for one job"),
        (("publish", "students", "--noise-key", "key"), "'run publish' adds no noise"),
        (("shuffle", "--name", "../w1"), "--name: got '../w1'"),
    ],
)
def test_conflicting_options_are_rejected(
    dpstream: Commands, arguments: tuple[str, ...], message: str
) -> None:
    result = dpstream("run", *arguments)
    assert result.code == 2
    assert message in result.errors


def test_second_supervisor_with_the_same_name_is_rejected(dpstream: Commands) -> None:
    with FolderLock(supervisor_folder("shuffle", "w1"), "supervisor w1 of shuffle"):
        result = dpstream("run", "shuffle", "--name", "w1")
    assert result.code == 1
    assert "(supervisor w1 of shuffle)" in result.errors


def test_metrics_port_in_use_is_reported_in_one_line(dpstream: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = dpstream("run", "aggregate", "--metrics", port)
    assert result.code == 1
    message = f"error: cannot serve metrics at 127.0.0.1:{port} (Address already in use): choose "
    assert message in result.errors
    assert result.errors.count("\n") == 1


def test_worker_waits_for_a_missing_broker(
    dpstream: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, waits, found = ["first", "second"], list[float](), cluster_and_jobs.cluster_of

    def cluster_of(servers: str | None, config: Path | None) -> Any:
        if away:
            raise BrokerAwayError(f"cannot reach Kafka: {away.pop()}")
        return found(servers, config)

    monkeypatch.setattr("dpstream.pipeline.cli.run.cluster_of", cluster_of)
    monkeypatch.setattr("time.sleep", waits.append)
    result = dpstream("run", "shuffle", "nothing")
    assert len(waits) == 2
    # Printed once; then the broker responds, and the job does not exist.
    assert result.errors.count("waiting for an answer") == 1
    assert (result.code, "nothing" in result.errors.splitlines()[-1]) == (1, True)
