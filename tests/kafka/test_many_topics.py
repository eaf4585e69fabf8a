"""What is known of many jobs before it is asked is what the cluster says when it is asked."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from kafka import KafkaProducer

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_files import make_job
from pipeline.kafka.cluster import Cluster
from pipeline.kafka.many_topics import ManyTopics, Tail
from pipeline.operations.deployments import deploy, undeploy
from topics.names import Role

AT_MOST = 5


@pytest.fixture
def jobs(cluster: Cluster, job_name: str) -> Iterator[list[DeployedJob]]:
    values = {
        "protocol": "future_rand",
        "parameters": {"epsilon": 1.0, "changes": 2},
        "epochs": {"count": 8},
    }
    made = [make_job({"name": f"{job_name}-{number}", **values}) for number in range(3)]
    yield [deploy(cluster, job, deployment=secrets.token_bytes(16), now=0) for job in made]
    for job in made:
        undeploy(cluster, job.name, delete_topics=True)


@pytest.mark.parametrize("others", [0, 700])
def test_the_latest_records_of_many_topics_are_read_to_their_ends(
    cluster: Cluster, jobs: list[DeployedJob], others: int
) -> None:
    """Also where what lies at an end is no record, and where there is more than one poll takes."""
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
    end = cluster.end_offsets(unfinished)[0]
    assert [each.offset for each in cluster.read(unfinished)] == [0] != [end - 1], "it ends so"
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
            assert many.end_offsets(topic) == [stop], "as of the moment of the look"
    assert len(expected) == 1
