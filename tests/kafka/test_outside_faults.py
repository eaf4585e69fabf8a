"""Test that external changes to a job's topics cause no unnoticed loss and no double count."""

import json
import signal
import time
from collections.abc import Callable

import pytest
from kafka import KafkaProducer
from kafka.admin import NewTopic

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.topics.names import Role
from tests.support.echo import PARTITIONS, Echo


def recreate(echo: Echo, role: Role, partitions: int) -> None:
    admin = echo.admin
    topic = echo.topic(role)
    admin.delete_topics([topic])
    deadline = time.monotonic() + 30.0
    while topic in admin.list_topics():
        assert time.monotonic() < deadline, "the topic still exists"
    admin.create_topics([NewTopic(topic, partitions, 1)])
    admin.close()


def delete(echo: Echo, role: Role) -> None:
    admin = echo.admin
    admin.delete_topics([echo.topic(role)])
    admin.close()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            lambda echo: delete(echo, Role.REPORTS),
            "reports no longer exists: was the job undeployed?",
        ),
        (
            lambda echo: delete(echo, Role.SHUFFLED),
            "shuffled no longer exists: was the job undeployed?",
        ),
        (
            lambda echo: recreate(echo, Role.REPORTS, 1),
            "but the job was deployed with 3: the topic was deleted and recreated",
        ),
        (
            lambda echo: recreate(echo, Role.REPORTS, PARTITIONS),
            "ends at offset 0, but had previously reached offset 10: the topic was deleted",
        ),
    ],
    ids=["reports deleted", "shuffled deleted", "fewer partitions", "recreated"],
)
def test_worker_exits_when_its_topic_is_deleted(
    echo: Echo, harm: Callable[[Echo], None], said: str
) -> None:
    echo.produce(10)
    worker = echo.start("only")
    echo.wait_until(lambda: echo.copied() >= 10 * PARTITIONS, "all records are copied")
    # Between deletion and recreation, the worker would see that the topic is missing.
    worker.signal(signal.SIGSTOP)
    harm(echo)
    worker.signal(signal.SIGCONT)
    assert worker.exit_code() == 1
    assert said in worker.lines[-1]
    assert f"dpstream undeploy {echo.name} --delete-topics" in worker.lines[-1]


def test_worker_exits_when_its_topic_was_recreated(echo: Echo, cluster: Cluster) -> None:
    """A stage that only writes to a recreated topic cannot detect it by its offsets."""
    ids = cluster.topic_identities([echo.topic(Role.REPORTS), echo.topic(Role.SHUFFLED)])
    echo.topic_ids = {role: ids[echo.topic(role)] for role in (Role.REPORTS, Role.SHUFFLED)}
    worker = echo.start("only")
    echo.wait_until(lambda: worker.said("partitions: 0, 1, 2") == 1, "the worker has partitions")
    worker.signal(signal.SIGSTOP)
    recreate(echo, Role.SHUFFLED, PARTITIONS)
    worker.signal(signal.SIGCONT)
    assert worker.exit_code() == 1
    assert "shuffled was deleted and recreated; its data is lost" in worker.lines[-1]


@pytest.mark.slow
def test_worker_reports_compaction_when_records_are_missing(echo: Echo, cluster: Cluster) -> None:
    """The worker fails at every start; the reported ages are those of existing records."""
    topic = echo.topic(Role.REPORTS)
    begun = time.time()
    cluster.alter_topics({topic: {"segment.ms": "100"}})
    # Only records in closed segments are compacted.
    for _ in range(3):
        echo.produce(5)
        time.sleep(0.3)
    compaction = {"cleanup.policy": "compact", "max.compaction.lag.ms": "100"}
    cluster.alter_topics({topic: compaction | {"min.cleanable.dirty.ratio": "0.001"}})
    echo.wait_until(lambda: len(echo.read(Role.REPORTS, 0)) < 15, "records are compacted away")

    now = time.time()
    # Kafka finds no timestamp for some records.
    for written in cluster.written(topic, {0: 0}, int(1000 * now)).values():
        assert 1000 * begun - 2000 <= written <= 1000 * now
    for _ in range(2):
        worker = echo.start("only")
        assert worker.exit_code() == 1
        assert "offsets 0 to " in worker.lines[-1]
        assert "(the log continues at " in worker.lines[-1]
        assert "its cleanup.policy was changed" in worker.lines[-1]


def test_added_partitions_are_ignored(echo: Echo) -> None:
    echo.produce(50)
    worker = echo.start("first")
    echo.wait_until(lambda: echo.copied() >= 50 * PARTITIONS, "all records are copied")
    admin = echo.admin
    admin.create_partitions({echo.topic(Role.REPORTS): PARTITIONS + 2})
    admin.close()
    echo.wait_until(lambda: worker.said("has 5 partitions") == 1, "the worker reports it")
    stray = KafkaProducer(**echo.connection.kafka_python())
    stray.send(echo.topic(Role.REPORTS), b"stray", partition=PARTITIONS).get(30)
    stray.close()

    # The new partitions are also assigned to a second worker, without and with the first.
    second = echo.start("second")
    echo.wait_until(lambda: second.said("partitions:") > 0, "the second worker gets partitions")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    echo.wait_until(lambda: second.said("partitions: 0, 1, 2") == 1, "it has deployed partitions")
    echo.produce(50)
    echo.wait_until(lambda: echo.copied() >= 100 * PARTITIONS, "all records are copied")
    echo.expect_each_once(100)
    assert worker.said("has 5 partitions") == 1
    assert echo.read(Role.REPORTS, PARTITIONS) == [b"stray"]


def test_stopped_worker_is_reported_as_stopped(echo: Echo) -> None:
    worker = echo.start("only")
    echo.wait_until(lambda: bool(echo.read(Role.STATUS, 0)), "the worker logs a line")
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    last = json.loads(echo.read(Role.STATUS, 0)[-1])
    assert (last["stopped"], last["worker"], last["stage"]) == (True, "only", "echo")
