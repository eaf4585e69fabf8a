"""What is private to Faust and aiokafka and used all the same, each with its reason; nowhere else.

Checked with faust-streaming 0.15.3 and aiokafka 0.14.0; a test looks for every one of these names.
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

from dpstream.pipeline.kafka.cluster_errors import refused_kind
from dpstream.pipeline.kafka.workers.timings import Timings

_POLL_SECONDS = 0.02
# What Faust itself gives a look for records that is to last.
_FAUST_SECONDS = 1.0


class PromptConsumer(Consumer):
    """Faust's consumer, which fetches as soon as there is room for records.

    Faust leaves a partition with a full buffer out of the next fetch, and waits up to a second for
    the idle ones while that buffer runs empty.
    """

    timings = Timings()

    def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """Fetch some records, and look again soon for which partitions there is room.

        Where there is room for all, nothing is missed by waiting: each look takes a worker that has
        nothing to do a millisecond of processor time. Records that come end it at once, but no
        rebalance does.
        """
        patience = _POLL_SECONDS if self._paused_partitions else self.timings.idle
        return super().getmany(patience if timeout >= _FAUST_SECONDS else min(timeout, patience))

    async def _wait_next_records(self, timeout: float) -> tuple[RecordMap | None, set[TP] | None]:
        # Without a partition that has room, Faust sleeps for a second whatever `timeout` says.
        if self.flow_active and not self._get_active_partitions():
            await asyncio.sleep(_POLL_SECONDS)
            return None, None
        return await super()._wait_next_records(timeout)

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        # There is no other way to have Faust start a thread with methods of one's own.
        self.client_thread = self.new_thread()
        return self.client_thread

    def new_thread(self) -> ClientThread:
        """The thread that holds the client of the broker."""
        return ClientThread(self, loop=self.loop, beacon=self.beacon)


class ClientThread(AIOKafkaConsumerThread):
    """Faust's consumer thread, with its aiokafka client and what that knows of its group."""

    timings = Timings()

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        # Faust's 1,500 ms, which no setting changes, let one long poll over idle partitions delay
        # the busy one. Read first: nothing may be set in vain.
        consumer = super()._create_worker_consumer(transport)
        patience = round(1000 * self.timings.fetch)
        consumer._fetch_max_wait_ms = min(patience, consumer._fetch_max_wait_ms)
        consumer._consumer_timeout = max(self.timings.look, consumer._consumer_timeout)
        return consumer

    async def on_start(self) -> None:
        """Start the client, which is patient where nothing waits for the answer."""
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
        # Once a second, Faust has the thread's loop go round, lest it miss what it is asked to do.
        # It misses nothing: whoever asks wakes it.
        async for _ in self.itertimer(max(1.0, self.timings.look)):
            pass

    @property
    def client(self) -> AIOKafkaConsumer:
        """The client. Faust's own commits go through its bookkeeping of acknowledged events."""
        return self._ensure_consumer()

    @property
    def generation(self) -> int:
        """The generation of the group that the client is in; no public name of aiokafka's has it.

        aiokafka commits under its present one, which need not be that of the work committed.
        """
        generation: int = self.client._coordinator.generation
        return generation

    async def committed_with_metadata(self, where: TopicPartition) -> OffsetAndMetadata | None:
        """The committed offset of a partition, of which aiokafka tells no metadata."""
        found: dict[TopicPartition, OffsetAndMetadata]
        found = await self.client._coordinator.fetch_committed_offsets([where])
        return found.get(where)

    @property
    def refusal(self) -> KafkaError | None:
        """What keeps the client out of its group for good; None: nothing does.

        aiokafka keeps it for whoever asks for records next, which Faust does not do without any
        partitions: a worker would wait without a word.
        """
        coordinator = None if self._consumer is None else self._consumer._coordinator
        found: KafkaError | None = getattr(coordinator, "_pending_exception", None)
        return found if found is not None and refused_kind(found) is not None else None

    async def heartbeat(self) -> bool:
        """Ask the group's coordinator whether it takes this client for a member of its generation.

        aiokafka does it now and then by itself, and tells nobody of the answer.
        """
        coordinator = self.client._coordinator
        await coordinator.ensure_coordinator_known()
        taken: bool = await coordinator._do_heartbeat()
        return taken


class NoTables(TableManager):
    """Faust's keeper of tables, of which a worker has none: it starts at once.

    Faust waits for a second, lest a table be made too late, before it joins the group.
    """

    async def on_start(self) -> None:
        """Say that all tables are known, and that nothing of them is to be recovered."""
        await self._update_channels()
        await self.recovery.start()


class NarrowAdmin(AIOKafkaAdminClient):  # type: ignore[misc]  # it says nothing of types
    """aiokafka's client for administration, which asks about no topics but those it is about.

    aiokafka asks for all topics of the cluster whenever it deletes records, and they may be
    thousands: then the answers take most of the time of a worker.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._deletes_from: set[str] = set()

    async def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """How many partitions topics have; those that are not there, or are hidden, are left out.

        Raises:
            KafkaError: no broker answers.
        """
        answer = await self._get_cluster_metadata(sorted(topics))
        # It names the brokers, too, which may have changed.
        self._client.cluster.update_metadata(answer)
        return {
            each["topic"]: len(each["partitions"])
            for each in answer.to_object()["topics"]
            if not each["error_code"]
        }

    async def assigned_partitions(self, group: str, topic: str) -> set[int] | None:
        """Return the partitions of a topic that members of a group have.

        None while the group is rebalanced, and where it may not be seen.
        """
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
        """Delete records from partitions."""
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
                # Another broker knows as much.
                failure = error
        raise failure or KafkaConnectionError("no broker is known")


class SilentMonitor(Monitor):
    """Faust's own sensor, whose figures nobody reads: it does not reckon them every second."""

    @Service.task
    async def _sampler(self) -> None:
        """Do nothing."""


def wait_long_for_all(
    consumer: AIOKafkaConsumer, milliseconds: int, batch: int, quiet_milliseconds: int
) -> None:
    """Let a broker hold a question back that is about every partition.

    For so long, or until so many bytes have come: those that work beside many others ask less often
    and are told more at once. If nothing has come since the client last looked for what to ask, the
    question is held back for `quiet_milliseconds`, or until there is anything. A question that
    leaves a partition out, of which there are records that nobody has taken yet, is not held back
    for longer than before, since nothing is asked of that partition until it is answered.
    """
    fetcher = consumer._fetcher
    short, look = fetcher._fetch_max_wait_ms, fetcher._get_actions_per_node
    seen: object = None

    def look_patiently(assignment: Any) -> Any:
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
        patience = quiet_milliseconds if nothing_came else milliseconds
        fetcher._fetch_max_wait_ms = short if left_out else max(short, patience)
        fetcher._fetch_min_bytes = 1 if left_out or nothing_came else batch
        return look(assignment)

    fetcher._get_actions_per_node = look_patiently


def refusal_of(app: AppT) -> KafkaError | None:
    """What keeps the consumer of an application out of its group; see `ClientThread.refusal`."""
    thread = getattr(app.consumer, "client_thread", None)
    return thread.refusal if isinstance(thread, ClientThread) else None


def never_give_up(producer: AIOKafkaProducer) -> None:
    """Let batches of an idempotent producer wait for a partition's leader however long it takes.

    They are sent until they are acknowledged; only those that wait for the leader to be known would
    be given up, after the time that requests are given.
    """
    accumulator = producer._message_accumulator
    accumulator._batch_ttl = max(math.inf, accumulator._batch_ttl)
