"""Write a collector's records to Kafka; a write ends when all in-sync replicas have the record."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from dpstream.pipeline.collector.batch_writer import WriteError
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.cluster import CLIENT_ID
from dpstream.pipeline.kafka.cluster_errors import access_problem, rejected_kind
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.silent_peers import close_silent_connections
from dpstream.pipeline.kafka.topic_ids import ask_ids
from dpstream.topics.names import BATCH_BYTES_MAX

# The client's limit counts only the records of a batch; the topic's limit counts the headers, too.
_BATCH_BYTES = BATCH_BYTES_MAX - 4096
_REQUEST_MILLISECONDS = 10_000
_STOP_SECONDS = 1.0
# Kafka's code of the timestamp type LogAppendTime.
_LOG_APPEND_TIME = 1


class KafkaWriter:
    """One producer for the topics of all jobs; acknowledgements update `clock`.

    The producer is not idempotent, because an idempotent producer would retry forever while a
    device waits for the answer. Duplicate records are harmless: the first report per tag counts.
    """

    def __init__(self, connection: Connection, clock: BrokerClock) -> None:
        self._principal = connection.principal
        options: dict[str, Any] = {"client_id": CLIENT_ID, **connection.aiokafka()}
        self._clock = clock
        self._producer = AIOKafkaProducer(
            **options,
            acks="all",
            enable_idempotence=False,
            linger_ms=0,
            max_batch_size=_BATCH_BYTES,
            request_timeout_ms=_REQUEST_MILLISECONDS,
            retry_backoff_ms=100,
        )
        self._started = False

    async def start(self) -> None:
        """Connect; raise WriteError if no broker answers. Can be called again."""
        if self._started:
            return
        close_silent_connections()
        try:
            await self._producer.start()
        except (KafkaError, OSError) as error:
            raise WriteError(str(error)) from None
        self._started = True

    async def write(
        self, topic: str, partition: int, value: bytes, key: bytes | None = None
    ) -> int | None:
        begun = self._clock.begin()
        try:
            written = await self._producer.send_and_wait(topic, value, key=key, partition=partition)
        except (KafkaError, OSError, AssertionError) as error:
            if (kind := rejected_kind(error)) is not None:
                raise WriteError(
                    access_problem(self._principal, "write", kind, topic, "collector")
                ) from None
            # The client raises an AssertionError if a topic has no such partition.
            raise WriteError(str(error) or type(error).__name__) from None
        if written.timestamp_type != _LOG_APPEND_TIME:
            return None
        appended: int = written.timestamp
        self._clock.note(appended, begun)
        return appended

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        try:
            return await ask_ids(self._producer.client, topics) if self._started else {}
        except (KafkaError, OSError) as error:
            raise WriteError(str(error)) from None

    async def stop(self) -> None:
        if self._started:
            await asyncio.wait(
                [asyncio.ensure_future(self._producer.stop())], timeout=_STOP_SECONDS
            )
