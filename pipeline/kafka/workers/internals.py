"""All uses of private APIs in Faust and aiokafka, each with its reason.

Checked with faust-streaming 0.15.3 and aiokafka 0.14.0; a test checks that every name exists.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Collection
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import OffsetAndMetadata
from faust.sensors import Monitor
from faust.tables.manager import TableManager
from faust.transport.consumer import RecordMap
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP, AppT, Message
from mode import Service

from dpstream.pipeline.kafka.cluster_errors import rejected_kind
from dpstream.pipeline.kafka.workers.timings import Timings

_POLL_SECONDS = 0.02
# Timeout of Faust's own long polls.
_FAUST_SECONDS = 1.0


class PromptConsumer(Consumer):
    """Faust's consumer, changed to fetch as soon as there is capacity for records.

    Faust leaves a partition with a full buffer out of the next fetch. Faust then waits up to a
    second for records from the other partitions, while that buffer drains.
    """

    timings = Timings()

    def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """Fetch some records, and soon check again which partitions have capacity.

        If all partitions have capacity, waiting loses nothing, and each check costs an idle worker
        a millisecond of processor time. New records end the wait early; a rebalance does not.
        """
        wait = _POLL_SECONDS if self._paused_partitions else self.timings.idle
        return super().getmany(wait if timeout >= _FAUST_SECONDS else min(timeout, wait))

    async def _wait_next_records(self, timeout: float) -> tuple[RecordMap | None, set[TP] | None]:
        # If no partition has capacity, Faust sleeps for a second, whatever the `timeout`.
        if self.flow_active and not self._get_active_partitions():
            await asyncio.sleep(_POLL_SECONDS)
            return None, None
        return await super()._wait_next_records(timeout)

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        # There is no other way to let Faust start a thread with additional methods.
        self.client_thread = self.new_thread()
        return self.client_thread

    def new_thread(self) -> ClientThread:
        return ClientThread(self, loop=self.loop, beacon=self.beacon)


class ClientThread(AIOKafkaConsumerThread):
    timings = Timings()

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        # Faust's fixed wait of 1,500 ms lets a long poll over idle partitions delay the busy
        # partition. Reading the attributes first fails if they no longer exist.
        consumer = super()._create_worker_consumer(transport)
        wait = round(1000 * self.timings.fetch)
        consumer._fetch_max_wait_ms = min(wait, consumer._fetch_max_wait_ms)
        consumer._consumer_timeout = max(self.timings.look, consumer._consumer_timeout)
        return consumer

    async def on_start(self) -> None:
        """Start the client, with long polls if no other requests have to wait behind long polls."""
        await super().on_start()
        timings = self.timings
        wait_long_for_all(
            self.client,
            round(1000 * timings.whole),
            timings.batch,
            round(1000 * timings.quiet),
        )

    @Service.task
    async def _thread_keepalive(self) -> None:
        # Faust wakes the thread's loop once a second so that it does not miss a request, which is
        # unnecessary: each request wakes it.
        async for _ in self.itertimer(max(1.0, self.timings.look)):
            pass

    @property
    def client(self) -> AIOKafkaConsumer:
        """The aiokafka client, for commits: Faust itself commits only acknowledged events."""
        return self._ensure_consumer()

    @property
    def generation(self) -> int:
        """The client's current group generation, which has no public name in aiokafka.

        aiokafka commits under its current generation, even for work done in an earlier one.
        """
        generation: int = self.client._coordinator.generation
        return generation

    async def committed_with_metadata(self, where: TopicPartition) -> OffsetAndMetadata | None:
        """Return the committed offset of a partition with its metadata, which aiokafka omits."""
        found: dict[TopicPartition, OffsetAndMetadata]
        found = await self.client._coordinator.fetch_committed_offsets([where])
        return found.get(where)

    @property
    def rejection(self) -> KafkaError | None:
        """The error that permanently keeps the client out of its group, or None.

        aiokafka raises this error at the next fetch. Without partitions, Faust never fetches, so
        the worker would wait silently.
        """
        coordinator = None if self._consumer is None else self._consumer._coordinator
        found: KafkaError | None = getattr(coordinator, "_pending_exception", None)
        return found if found is not None and rejected_kind(found) is not None else None

    async def heartbeat(self) -> bool:
        """Return whether the group's coordinator accepts this client as a member of its generation.

        aiokafka occasionally checks this by itself, but does not report the answer.
        """
        coordinator = self.client._coordinator
        await coordinator.ensure_coordinator_known()
        taken: bool = await coordinator._do_heartbeat()
        return taken


class NoTables(TableManager):
    """Faust's table manager, which starts immediately, since a worker has no tables.

    Faust waits for a second before it joins the group, in case a table is created late.
    """

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class NarrowAdmin(AIOKafkaAdminClient):  # type: ignore[misc]  # untyped base class
    """aiokafka's admin client, which requests metadata only for the topics it works on.

    aiokafka requests the metadata of all topics whenever it deletes records. With thousands of
    topics, the answers take most of a worker's time.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._deletes_from: set[str] = set()

    async def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions by topic; missing or hidden topics are omitted."""
        answer = await self._get_cluster_metadata(sorted(topics))
        # The answer also lists the brokers, which might have changed.
        self._client.cluster.update_metadata(answer)
        return {
            each["topic"]: len(each["partitions"])
            for each in answer.to_object()["topics"]
            if not each["error_code"]
        }

    async def assigned_partitions(self, group: str, topic: str) -> set[int] | None:
        """Return the partitions that a group has; None if hidden or during a rebalance."""
        (response,) = await self.describe_consumer_groups([group])
        (described,) = response.to_object()["groups"]
        if described["state"] != "Stable":
            return None
        return {
            partition
            for member in described["members"]
            for named, partition in ConsumerProtocolMemberAssignment.decode(
                member["member_assignment"]
            ).partitions()
            if named == topic
        }

    async def delete_records(
        self,
        records_to_delete: dict[TopicPartition, RecordsToDelete],
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, int]:
        self._deletes_from |= {each.topic for each in records_to_delete}
        deleted: dict[TopicPartition, int] = await super().delete_records(
            records_to_delete, timeout_ms
        )
        return deleted

    async def _get_cluster_metadata(self, topics: list[str] | None = None) -> Any:
        wanted = sorted(self._deletes_from) if topics is None else topics
        request = MetadataRequest(wanted, allow_auto_topic_creation=False)
        nodes = [broker.nodeId for broker in self._client.cluster.brokers()]
        random.shuffle(nodes)
        failure: KafkaError | TimeoutError | None = None
        for node in nodes:
            try:
                return await self._send_request(request, node)
            except (KafkaError, TimeoutError) as error:
                # Try another broker, which has the same metadata.
                failure = error
        raise failure or KafkaConnectionError("no broker is known")


class SilentMonitor(Monitor):
    """Faust's own sensor, which does not compute unused metrics every second."""

    @Service.task
    async def _sampler(self) -> None: ...


def wait_long_for_all(
    consumer: AIOKafkaConsumer, milliseconds: int, batch: int, quiet_milliseconds: int
) -> None:
    """Let a broker delay its answer to a fetch that covers every partition.

    The delay ends after `milliseconds`, or once `batch` bytes have arrived. A worker that runs
    alongside many others then fetches less often and gets more data. If nothing has arrived since
    the last fetch, the delay is `quiet_milliseconds`, or until any record arrives. A fetch that
    leaves out a partition with unconsumed records is delayed only briefly.
    """
    fetcher = consumer._fetcher
    short, look = fetcher._fetch_max_wait_ms, fetcher._get_actions_per_node
    seen: object = None

    def look_with_wait(assignment: Any) -> Any:
        nonlocal seen
        states = {partition: assignment.state_value(partition) for partition in assignment.tps}
        positions = {
            partition: state.position
            for partition, state in states.items()
            if state.has_valid_position
        }
        nothing_came, seen = seen == (assignment, positions), (assignment, positions)
        left_out = any(
            partition in fetcher._records or state.paused for partition, state in states.items()
        )
        wait = quiet_milliseconds if nothing_came else milliseconds
        fetcher._fetch_max_wait_ms = short if left_out else max(short, wait)
        fetcher._fetch_min_bytes = 1 if left_out or nothing_came else batch
        return look(assignment)

    fetcher._get_actions_per_node = look_with_wait


def rejection_of(app: AppT) -> KafkaError | None:
    thread = getattr(app.consumer, "client_thread", None)
    return thread.rejection if isinstance(thread, ClientThread) else None


def never_give_up(producer: AIOKafkaProducer) -> None:
    """Let batches of an idempotent producer wait indefinitely for a partition's leader.

    By default, batches that wait for an unknown leader are dropped after the request timeout.
    """
    accumulator = producer._message_accumulator
    accumulator._batch_ttl = max(math.inf, accumulator._batch_ttl)
