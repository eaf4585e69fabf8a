"""Test a stage's requests on a real broker: they succeed, or are rejected with a reason."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest
from aiokafka.errors import PolicyViolationError
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.kafka.cluster_errors import PositionDeletedError, RecordTooLargeError
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.workers.kafka_log import SLICE_BYTES, KafkaLog
from dpstream.topics.names import Role, job_topics, topic_name
from tests.support.waiting import TIMEOUT


@pytest.fixture
def connection(bootstrap_servers: str, job_name: str) -> Connection:
    connection = Connection((bootstrap_servers,))
    admin = KafkaAdminClient(**connection.kafka_python())
    admin.create_topics(
        [
            NewTopic(topic.name, topic.partitions, 1, topic_configs=dict(topic.configs))
            for topic in job_topics(job_name, 2, 1, retention_ms=-1).values()
        ]
    )
    admin.close()
    return connection


def run(
    connection: Connection, job_name: str, scenario: Callable[[KafkaLog], Awaitable[None]]
) -> None:
    async def main() -> None:
        log = KafkaLog(connection.aiokafka(), partial(topic_name, job_name))
        await log.start()
        try:
            await scenario(log)
        finally:
            await log.stop()

    asyncio.run(main())


def test_log_reads_records_as_written(connection: Connection, job_name: str) -> None:
    async def scenario(log: KafkaLog) -> None:
        assert await log.partitions(Role.SHUFFLED) == 2
        assert await log.end_offsets(Role.SHUFFLED, (1,)) == {1: 0}
        assert (await log.read(Role.SHUFFLED, 1, 0, 0)).records == ()
        await log.append(Append(Role.SHUFFLED, 1, b"value", key=b"k", headers=(("h", b"1"),)))
        await log.append(Append(Role.SHUFFLED, 1, b"another"))
        await log.append(Append(Role.MANIFESTS, 0, b"manifest"))
        written = {(Role.SHUFFLED, 1): 2, (Role.MANIFESTS, 0): 1}
        assert await log.flush() == written
        assert await log.ends([*written, (Role.SHUFFLED, 0)]) == {**written, (Role.SHUFFLED, 0): 0}
        assert await log.end_offsets(Role.SHUFFLED, (0, 1)) == {0: 0, 1: 2}
        first = await log.read(Role.SHUFFLED, 1, 0, 1)
        (record,) = first.records
        assert replace(record, timestamp=0) == LogRecord(0, b"value", 0, b"k", (("h", b"1"),))
        assert first.end == 1
        rest = await log.read(Role.SHUFFLED, 1, 1, 2)
        assert [record.value for record in rest.records] == [b"another"]
        assert (await log.read(Role.MANIFESTS, 0, 0, 1)).records[0].value == b"manifest"

    run(connection, job_name, scenario)


def test_second_read_of_own_records_fetches_them_from_the_broker(
    connection: Connection, job_name: str
) -> None:
    async def scenario(log: KafkaLog) -> None:
        assert not (await log.read(Role.MANIFESTS, 0, 0, 0)).records
        await log.append(Append(Role.MANIFESTS, 0, b"value", key=b"k", headers=(("h", b"1"),)))
        await log.append(Append(Role.MANIFESTS, 0, b"another"))
        await log.flush()
        known = await log.read(Role.MANIFESTS, 0, 0, 2)
        # The cache returns records once; then they are fetched from the broker.
        requested = await log.read(Role.MANIFESTS, 0, 0, 2)
        assert known == requested
        assert all(known.records[place] is not requested.records[place] for place in (0, 1))

    run(connection, job_name, scenario)


def test_log_reads_long_ranges_in_slices(connection: Connection, job_name: str) -> None:
    count = 3 * SLICE_BYTES // (64 << 10)

    async def scenario(log: KafkaLog) -> None:
        for number in range(count):
            await log.append(Append(Role.REPORTS, 0, number.to_bytes(4, "big") * (16 << 10)))
        await log.flush()
        position = slices = 0
        while position < count:
            piece = await log.read(Role.REPORTS, 0, position, count)
            for record in piece.records:
                assert record.offset == position
                assert record.value[:4] == position.to_bytes(4, "big")
                position += 1
            assert piece.end == position
            slices += 1
        assert slices >= 3

    run(connection, job_name, scenario)


def test_flush_raises_an_error_for_a_rejected_record(connection: Connection, job_name: str) -> None:
    async def scenario(log: KafkaLog) -> None:
        await log.append(Append(Role.REPORTS, 0, bytes(600_000)))
        with pytest.raises(RecordTooLargeError, match="reports rejects a record of 600,000 bytes"):
            await log.flush()
        log.forget_appends()
        await log.append(Append(Role.REPORTS, 0, b"small"))
        await log.flush()

    run(connection, job_name, scenario)


async def rejects_by_policy(log: KafkaLog) -> bool:
    try:
        await log.delete_below(Role.STATUS, 0, 7)
    except PolicyViolationError:
        return True
    return False


def test_log_ignores_records_removed_by_compaction(connection: Connection, job_name: str) -> None:
    topic = topic_name(job_name, Role.STATUS)
    admin = KafkaAdminClient(**connection.kafka_python())
    # Deleting records leaves the same records as compaction, without a wait. kafka-python would
    # first look up the setting in the broker's metadata, which lags behind a newly created topic.
    policy = {"cleanup.policy": "delete"}
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, policy)
    admin.alter_configs([changed], raise_on_unknown=False)
    admin.close()

    async def scenario(log: KafkaLog) -> None:
        for number in range(10):
            await log.append(Append(Role.STATUS, 0, b"%d" % number, key=b"worker"))
        await log.flush()
        async with asyncio.timeout(TIMEOUT):
            # Brokers apply changed settings after a delay.
            while await rejects_by_policy(log):
                pass
        assert [r.offset for r in (await log.read(Role.STATUS, 0, 0, 10)).records] == [7, 8, 9]

    run(connection, job_name, scenario)


def test_error_for_deleted_records_states_offsets(connection: Connection, job_name: str) -> None:
    async def scenario(log: KafkaLog) -> None:
        for _ in range(10):
            await log.append(Append(Role.REPORTS, 0, b"value"))
        await log.flush()
        await log.delete_below(Role.REPORTS, 0, 7)
        assert [r.offset for r in (await log.read(Role.REPORTS, 0, 7, 10)).records] == [7, 8, 9]
        with pytest.raises(PositionDeletedError, match=r"partition 0: offsets 4 to 6 are needed"):
            await log.read(Role.REPORTS, 0, 4, 10)
        await log.delete_below(Role.REPORTS, 0, 10)
        with pytest.raises(PositionDeletedError, match=r"partition 0: offsets 4 to 9 are needed"):
            async with asyncio.timeout(TIMEOUT):
                await log.read(Role.REPORTS, 0, 4, 10)

    run(connection, job_name, scenario)
