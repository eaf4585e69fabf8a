"""Test that prefetched records of many jobs are the same as those read one by one."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import CoordinatorNotAvailableError, GroupAuthorizationFailedError

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.many_topics import ManyTopics, Tail
from dpstream.pipeline.operations.deployments import deploy, undeploy
from dpstream.topics.names import Role

AT_MOST = 5
TIMEOUT = 60.0


@pytest.fixture
def jobs(cluster: Cluster, job_name: str) -> Iterator[list[DeployedJob]]:
    values = {
        "protocol": "future_rand",
        "parameters": {"epsilon": 1.0, "max_changes": 2},
        "epochs": {"count": 8},
    }
    made = [make_job({"name": f"{job_name}-{number}", **values}) for number in range(3)]
    yield [deploy(cluster, job, deployment=secrets.token_bytes(16), now=0) for job in made]
    for job in made:
        undeploy(cluster, job.name, delete_topics=True)


@pytest.mark.parametrize("others", [pytest.param(0, marks=pytest.mark.verify), 700])
def test_latest_records_of_many_topics_are_read(
    cluster: Cluster, jobs: list[DeployedJob], others: int
) -> None:
    """The last offset might not be a record, and one poll might not return all records."""
    empty, few, unfinished = (job.topic(Role.STATUS) for job in jobs)
    for number in range(AT_MOST + 3):
        cluster.append(few, b"%d" % number, key=b"key")
    for number in range(others):
        cluster.producer.send(few, b"other %d" % number, key=b"key", partition=0)
    cluster.producer.flush()
    transactions = KafkaProducer(
        transactional_id=secrets.token_hex(8), **cluster.connection.kafka_python()
    )
    transactions.init_transactions()
    transactions.begin_transaction()
    transactions.send(unfinished, b"committed", key=b"key", partition=0)
    transactions.commit_transaction()
    transactions.close()
    # The commit marker is written shortly after the acknowledgement.
    deadline = time.monotonic() + TIMEOUT
    while cluster.end_offsets(unfinished) == [1]:
        assert time.monotonic() < deadline, "no commit marker was written"
    assert [each.offset for each in cluster.read(unfinished)] == [0]
    assert cluster.end_offsets(unfinished) == [2]
    at_most = max(AT_MOST, others)
    with ManyTopics(cluster.connection) as many:
        tails = {topic: Tail(0, at_most) for topic in (empty, few, unfinished)}
        many.look(tails, {}, tails)
        for topic in tails:
            assert many.end_offsets(topic) == cluster.end_offsets(topic)
            (stop,) = cluster.end_offsets(topic)
            start = max(0, stop - at_most)
            expected = list(cluster.read(topic, start=start, stop=stop))
            cluster.append(topic, b"later", key=b"key")
            assert list(many.read(topic, start=start, stop=stop)) == expected
            assert many.end_offsets(topic) == [stop], "as of the prefetch"
    assert len(expected) == 1


FAILURES: list[tuple[list[Exception], bool]] = [
    ([CoordinatorNotAvailableError(), KeyError("a topic that is made just now")], True),
    ([CoordinatorNotAvailableError()] * 9, False),
    ([GroupAuthorizationFailedError()], False),
]


def test_transient_failures_are_retried(
    cluster: Cluster, jobs: list[DeployedJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, hundreds of jobs would be queried separately."""
    for job, (failures, known) in zip(jobs, FAILURES, strict=True):
        topic, left = job.topic(Role.STATUS), list(failures)
        with ManyTopics(cluster.connection) as many:
            look = many._look

            def failing(*arguments: Any, left: list[Exception] = left, look: Any = look) -> Any:
                if left:
                    raise left.pop()
                return look(*arguments)

            monkeypatch.setattr(many, "_look", failing)
            many.look([topic], {}, {})
            cluster.append(topic, b"later", key=b"key")
            assert (many.end_offsets(topic) == [0]) is known
            assert many.end_offsets(topic) in ([0], cluster.end_offsets(topic))
