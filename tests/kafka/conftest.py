"""A real broker for the tests of this folder. One that cannot be started fails them all."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.local_kafka import LocalKafka
from tests.support.echo import Echo


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that ``-m "not kafka"`` leaves it out."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kafka)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """The broker that all tests share; whoever stops or kills it starts it again."""
    kafka = LocalKafka(tmp_path_factory.mktemp("kafka"))
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()


@pytest.fixture
def bootstrap_servers(broker: LocalKafka) -> str:
    """The address of the shared broker."""
    servers = broker.status().bootstrap_servers
    assert servers is not None
    return servers


@pytest.fixture
def job_name() -> str:
    """A name that no other test's topics, groups or folders share."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def echo(bootstrap_servers: str, job_name: str, tmp_path: Path) -> Iterator[Echo]:
    """A job whose workers copy records."""
    job = Echo(job_name, bootstrap_servers, tmp_path)
    yield job
    job.close()
