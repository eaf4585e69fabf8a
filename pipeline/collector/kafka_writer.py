"""Writes to Kafka for a collector, each record until all replicas in sync have it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from dpstream.pipeline.collector.batch_writer import WriteError
from dpstream.pipeline.kafka.broker_clock import BrokerClock
from dpstream.pipeline.kafka.cluster import CLIENT_ID
from dpstream.pipeline.kafka.cluster_errors import access_problem, refused_kind
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.silent_peers import close_silent_connections
from dpstream.pipeline.kafka.topic_ids import ask_ids
from dpstream.topics.names import BATCH_BYTES_MAX

# The client counts the records of a batch, the topic what is around them too.
_BATCH_BYTES = BATCH_BYTES_MAX - 4096
_REQUEST_MILLISECONDS = 10_000
_STOP_SECONDS = 1.0
# Kafka's number of the type of a timestamp.
_LOG_APPEND_TIME = 1


class KafkaWriter:
    """One producer for the topics of all jobs.

    It is not idempotent: a record that is there twice has the same tags twice, of which the first
    counts, and a producer that is gives up on nothing, for whose answer a device waits.

    Args:
        connection: the cluster.
        clock: is told by every acknowledgement what the broker's clock says.
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
        """Connect.

        Raises:
            WriteError: no broker answers; it may be tried again.
        """
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
        """As of `dpstream.pipeline.collector.batch_writer.Writer`."""
        begun = self._clock.begin()
        try:
            written = await self._producer.send_and_wait(topic, value, key=key, partition=partition)
        except (KafkaError, OSError, AssertionError) as error:
            if (kind := refused_kind(error)) is not None:
                raise WriteError(
                    access_problem(self._principal, "write", kind, topic, "collector")
                ) from None
            # An assertion is how the client says that a topic has no such partition.
            raise WriteError(str(error) or type(error).__name__) from None
        if written.timestamp_type != _LOG_APPEND_TIME:
            return None
        appended: int = written.timestamp
        self._clock.note(appended, begun)
        return appended

    async def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """As of `dpstream.pipeline.collector.collector.LogWriter`."""
        try:
            return await ask_ids(self._producer.client, topics) if self._started else {}
        except (KafkaError, OSError) as error:
            raise WriteError(str(error)) from None

    async def stop(self) -> None:
        """Disconnect, without waiting long for anything."""
        if self._started:
            await asyncio.wait(
                [asyncio.ensure_future(self._producer.stop())], timeout=_STOP_SECONDS
            )
