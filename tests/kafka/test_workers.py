"""Test that a worker neither loses nor repeats records under kills, stops and pauses."""

import json
import os
import signal
import time

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata

from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.topics.names import Role
from tests.support.echo import PARTITIONS, Echo


def test_records_are_copied_once_across_kills_and_rebalances(echo: Echo) -> None:
    """Partitions move between two busy workers that are killed in turn."""
    portion = 200

    def authors() -> set[str]:
        return {author for p in range(PARTITIONS) for _, author, *_ in echo.copies(p)}

    first = echo.start("first", work=0.002)
    echo.wait_until(
        lambda: first.said("partitions: 0, 1, 2") == 1, "the first worker has all partitions"
    )
    echo.produce(portion)
    second = echo.start("second", work=0.002)
    echo.wait_until(lambda: second.said("partitions:") > 0, "the second worker has partitions")
    echo.produce(portion)
    first.signal(signal.SIGKILL)
    echo.wait_until(lambda: second.said("partitions: 0, 1, 2") == 1, "the second worker takes over")
    echo.wait_until(lambda: "second" in authors(), "the second worker has copied its records")
    first = echo.start("first", work=0.002)
    echo.wait_until(lambda: first.said("partitions:") > 0, "the first worker is back")
    echo.produce(portion)
    second.signal(signal.SIGKILL)
    second = echo.start("second", work=0.002)
    echo.wait_until(lambda: echo.copied() >= 3 * portion * PARTITIONS, "all records are copied")
    echo.expect_each_once(3 * portion)
    assert authors() == {"first", "second"}


def test_sigterm_stops_a_busy_worker_immediately(echo: Echo) -> None:
    echo.produce(300)
    worker = echo.start("only", work=0.01)
    echo.wait_until(lambda: echo.copied() > 0, "the worker copies")
    double = echo.start("only")
    assert double.exit_code() == 1
    assert double.said(str(echo.folder / "only")) == 1
    worker.signal(signal.SIGTERM)
    requested = time.monotonic()
    assert worker.exit_code() == 0
    assert time.monotonic() - requested < 3.0
    assert worker.lines[-1].endswith("stopped")

    again = echo.start("only")
    echo.wait_until(lambda: echo.copied() >= 300 * PARTITIONS, "the successor resumes")
    echo.expect_each_once(300)
    echo.wait_until(lambda: status(echo)["lag"] == 0, "the successor reports it")
    heartbeat = status(echo)
    assert heartbeat["stage"] == "echo"
    assert heartbeat["worker"] == "only"
    assert heartbeat["partitions"] == [0, 1, 2]
    assert heartbeat["copied"] == 300 * PARTITIONS
    assert len(again.lines) == 1


def status(echo: Echo) -> dict[str, object]:
    heartbeat: dict[str, object] = json.loads(echo.read(Role.STATUS, 0)[-1])
    return heartbeat


def test_worker_logs_an_outage_once_and_resumes(echo: Echo, broker: LocalKafka) -> None:
    """The broker is killed while a worker is busy, and another worker starts meanwhile."""
    count = 500
    echo.produce(count)
    busy = echo.start("busy", work=0.01)
    echo.wait_until(lambda: echo.copied() > 0, "the worker copies")
    pid = broker.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    late = echo.start("late")
    echo.wait_until(lambda: busy.said("unreachable") == 1, "the busy worker notices the outage")
    echo.wait_until(lambda: late.said("unreachable") == 1, "the late worker notices the outage")
    broker.start()
    echo.wait_until(lambda: echo.copied() >= count * PARTITIONS, "all records are copied")
    echo.expect_each_once(count)
    echo.wait_until(lambda: busy.said("broker is back") == 1, "the busy worker reports it")
    echo.wait_until(lambda: late.said("broker is back") == 1, "the late worker reports it")
    for worker in (busy, late):
        assert worker.said("unreachable") == 1
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


def test_blocked_worker_exits(echo: Echo) -> None:
    echo.produce(1)
    worker = echo.start("stuck", work=1000.0)
    assert worker.exit_code() == 1
    assert "the event loop has been blocked for 6 s: exiting" in worker.lines[-1]


def test_missing_topic_error_states_the_remedy(echo: Echo) -> None:
    admin = KafkaAdminClient(**echo.connection.kafka_python())
    admin.delete_topics([echo.topic(Role.REPORTS)])
    admin.close()
    worker = echo.start("only")
    assert worker.exit_code() == 1
    assert (
        f"topic {echo.topic(Role.REPORTS)} does not exist: deploy the job first" in worker.lines[-1]
    )


def test_worker_exits_when_needed_records_are_deleted(echo: Echo) -> None:
    echo.produce(100)
    worker = echo.start("only")
    echo.wait_until(lambda: echo.copied() >= 100 * PARTITIONS, "all records are copied")
    worker.signal(signal.SIGKILL)
    worker.exit_code()
    echo.produce(100)
    admin = KafkaAdminClient(**echo.connection.kafka_python())
    admin.delete_records({TopicPartition(echo.topic(Role.REPORTS), 1): 150})
    admin.close()

    worker = echo.start("only")
    assert worker.exit_code() == 1
    error = worker.lines[-1]
    assert f"{echo.topic(Role.REPORTS)}, partition 1" in error
    assert "to 149 are needed but were deleted (the log starts at 150)" in error


def test_no_records_are_lost_when_another_tool_advances_offsets(echo: Echo) -> None:
    echo.produce(100)
    worker = echo.start("only")
    echo.wait_until(lambda: echo.copied() >= 100 * PARTITIONS, "all records are copied")
    worker.signal(signal.SIGKILL)
    worker.exit_code()
    echo.produce(100)
    admin = echo.admin
    (group,) = [each["group_id"] for each in admin.list_groups() if echo.name in each["group_id"]]
    ends = {
        TopicPartition(echo.topic(Role.REPORTS), partition): OffsetAndMetadata(200, "", -1)
        for partition in range(PARTITIONS)
    }
    # Kafka rejects the change while the killed worker is still a group member.
    echo.wait_until(
        lambda: set(admin.alter_group_offsets(group, ends).values()) == {NoError},
        "the offsets are set",
    )
    admin.close()

    worker = echo.start("only")
    echo.wait_until(lambda: echo.copied() >= 200 * PARTITIONS, "all records are copied")
    echo.expect_each_once(200)
    assert worker.said("another program set offset 200") == PARTITIONS


def test_resumed_worker_restores_its_state_before_it_copies_records(echo: Echo) -> None:
    """The pause exceeds the session timeout; other workers copy its buffered records."""
    count = 400
    echo.produce(count)
    paused = echo.start("paused", work=0.005)
    echo.wait_until(lambda: echo.copied() > 30, "the worker copies")
    paused.signal(signal.SIGSTOP)
    successor = echo.start("successor", work=0.005)
    echo.wait_until(lambda: successor.said("partitions: 0, 1, 2") == 1, "the successor takes over")
    echo.wait_until(
        lambda: all(any(c[1] == "successor" for c in echo.copies(p)) for p in range(PARTITIONS)),
        "the successor copies",
    )
    woken = time.time()
    paused.signal(signal.SIGCONT)
    echo.wait_until(
        lambda: paused.said("partitions:") == 2, "the paused worker is assigned partitions again"
    )
    echo.wait_until(lambda: echo.copied() >= count * PARTITIONS, "all records are copied")
    for partition in range(PARTITIONS):
        copies = echo.copies(partition)
        # Records passed to its Kafka client before the pause are still sent, so a few might be
        # duplicated. No copy was started after its partitions were lost.
        assert {offset for offset, *_ in copies} == set(range(count))
        assert not [
            offset
            for offset, worker, assignment, began in copies
            if worker == "paused" and assignment <= PARTITIONS and began > woken
        ]


def test_worker_rejoins_when_no_member_has_partitions(echo: Echo) -> None:
    """Under the same instance ID, Kafka would return its earlier assignment."""
    echo.produce(10)
    worker = echo.start("only", script="unassigned_worker.py")
    echo.wait_until(lambda: worker.said("partitions: none") == 1, "the group assigns no partitions")
    identity = echo.folder / "only" / "identity"
    before = identity.read_text()
    assert worker.exit_code() == 1
    assert "partitions 0, 1, 2 have not been assigned to any worker, although" in worker.lines[-1]

    again = echo.start("only")
    echo.wait_until(lambda: again.said("partitions: 0, 1, 2") == 1, "the worker has all partitions")
    assert identity.read_text() != before
    echo.wait_until(lambda: echo.copied() >= 10 * PARTITIONS, "all records are copied")
    echo.expect_each_once(10)
