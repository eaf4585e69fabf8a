"""Provide a real broker for the tests in this folder, which fail if it cannot be started."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from tests.support.commands import Commands
from tests.support.echo import Echo
from tests.support.secured_kafka import SecuredKafka
from tests.support.warm import WarmPopen

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0
"""Timeout in seconds, far longer than any operation takes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that ``-m "not kafka"`` leaves it out."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Broker shared by all tests. A test that stops or kills it starts it again."""
    kafka = LocalKafka(tmp_path_factory.mktemp("kafka"), brief=True)
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Broker that denies every request that no ACL allows."""
    with SecuredKafka(tmp_path_factory.mktemp("secured")) as kafka:
        yield kafka


@pytest.fixture
def bootstrap_servers(broker: LocalKafka) -> str:
    servers = broker.status().bootstrap_servers
    assert servers is not None
    return servers


@pytest.fixture
def job_name() -> str:
    """Job name that is unique among all tests."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def cluster(bootstrap_servers: str) -> Iterator[Cluster]:
    with Cluster(Connection((bootstrap_servers,))) as opened:
        yield opened


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("DPSTREAM_HOME", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def dpstream(capsys: pytest.CaptureFixture[str], home: Path, bootstrap_servers: str) -> Commands:
    """Function that runs commands on the shared broker."""
    return Commands(capsys, ("--bootstrap-servers", bootstrap_servers))


@pytest.fixture
def echo(bootstrap_servers: str, job_name: str, tmp_path: Path) -> Iterator[Echo]:
    """Job whose workers copy records."""
    job = Echo(job_name, bootstrap_servers, tmp_path)
    yield job
    job.close()


@pytest.fixture
def start(bootstrap_servers: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Function that starts commands as processes, which end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start_process(*arguments: str) -> subprocess.Popen[str]:
        process = WarmPopen(
            [sys.executable, "-m", "dpstream.pipeline.cli", *arguments],
            cwd=ROOT,
            env={**os.environ, "DPSTREAM_BOOTSTRAP_SERVERS": bootstrap_servers},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start_process
    for process in started:
        process.terminate()
    for process in started:
        process.communicate(timeout=TIMEOUT)
