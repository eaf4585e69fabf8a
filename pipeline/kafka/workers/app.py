"""The Faust application of a worker.

Faust's consumer, with the stage's restoration where Faust only seeks.

Faust lets records flow as soon as it has sought the committed offsets. Here the flow stays shut
until the stage has restored its partitions and said from where it wants to read, and offsets are
committed only when the stage asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata
from faust import App
from faust.types import TP

from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.groups import COMMITTED_BY, Committed
from dpstream.pipeline.kafka.workers.internals import (
    ClientThread,
    NoTables,
    PromptConsumer,
    SilentMonitor,
)
from dpstream.pipeline.kafka.workers.patience import RETRY_SECONDS, patiently
from dpstream.pipeline.kafka.workers.timings import Timings

if TYPE_CHECKING:
    from faust.types import AppT, StreamT

    from dpstream.pipeline.kafka.connection import Connection


class StageConsumer(PromptConsumer):
    """Tells an `Execution` which partitions of its topic it has."""

    client_thread: StageConsumerThread

    def __init__(
        self, *args: Any, execution: Execution, topic: str, timings: Timings, **kwargs: Any
    ) -> None:
        self.timings = timings
        self._execution = execution
        self._dropped = False
        super().__init__(*args, **kwargs)
        execution.membership = GroupMembership(self, self.client_thread, topic)
        self.stop_flow()

    def new_thread(self) -> StageConsumerThread:
        """A thread that commits for the stage."""
        thread = StageConsumerThread(self, loop=self.loop, beacon=self.beacon)
        thread.timings = self.timings
        return thread

    def stop_flow(self) -> None:
        """Shut the flow and forget the partitions: a rebalance begins, or the worker stops."""
        super().stop_flow()
        self._execution.revoked()

    def resume_flow(self) -> None:
        """Faust is ready for records: restore, and then open the flow."""
        super().stop_flow()
        self._execution.assigned([tp.partition for tp in self.assignment()])

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Forget the partitions before others may have them."""
        self.stop_flow()
        await self._execution.settle()
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Faust has dropped records, fetched while the flow was shut, and wants them again."""
        self._dropped = True

    async def flow_from(self, offsets: Mapping[TP, int]) -> None:
        """Open the flow at these offsets."""
        while True:
            self._dropped = False
            await self.seek_wait(offsets)
            if not self._dropped:
                break
        super().resume_flow()


class StageConsumerThread(ClientThread):
    """Faust's consumer thread; what is added here runs in it."""

    _committing: asyncio.Task[None] | None = None

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        """Stay silent: the worker says in one line why it ends."""

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Stop committing: a late commit could undo one of the next assignment."""
        if self._committing is not None:
            self._committing.cancel()
        await super().on_partitions_revoked(revoked)

    async def committed(self, where: TP) -> Committed | None:
        """The committed offset of a partition."""
        return Committed.of(await self.committed_with_metadata(TopicPartition(*where)))

    async def commit_offset(self, where: TP, offset: int, generation: int) -> bool:
        """Commit an offset; False if the group has gone on to another generation.

        Waits for a broker that is away.
        """
        if self.generation != generation:
            return False
        offsets = {TopicPartition(*where): OffsetAndMetadata(offset, COMMITTED_BY)}
        self._committing = asyncio.ensure_future(self.client.commit(offsets))
        try:
            await self._committing
        except (CommitFailedError, IllegalStateError, asyncio.CancelledError):
            return False
        finally:
            self._committing = None
        return True

    async def confirm(self, generation: int) -> bool:
        """Ask the group's coordinator whether this generation is still the group's.

        Waits for a broker that is away.
        """
        while self.generation == generation:
            if await self.heartbeat():
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False


class GroupMembership:
    """The `Membership` of an `Execution`, through Faust's consumer and its thread."""

    def __init__(self, consumer: StageConsumer, thread: StageConsumerThread, topic: str) -> None:
        self._consumer = consumer
        self._thread = thread
        self._topic = topic

    async def committed(self, partition: int) -> Committed | None:
        """The committed offset of a partition."""
        found: Committed | None = await self._thread.call_thread(
            self._thread.committed, TP(self._topic, partition)
        )
        return found

    async def commit(self, partition: int, offset: int) -> bool:
        """Commit an offset; False if the partitions are no longer ours."""
        done: bool = await self._thread.call_thread(
            self._thread.commit_offset, TP(self._topic, partition), offset, self._generation
        )
        return done

    async def confirm(self) -> bool:
        """Ask the broker whether the partitions are still ours."""
        ours: bool = await self._thread.call_thread(self._thread.confirm, self._generation)
        return ours

    async def first_offsets(self, partitions: Collection[int]) -> Mapping[int, int]:
        """The offset at which each partition begins."""
        where = [TP(self._topic, partition) for partition in partitions]
        firsts = await patiently(lambda: self._consumer.earliest_offsets(*where))
        return {tp.partition: offset for tp, offset in firsts.items()}

    async def read_from(self, positions: Mapping[int, int]) -> None:
        """Let records flow, from these offsets."""
        await self._consumer.flow_from(
            {TP(self._topic, partition): offset for partition, offset in positions.items()}
        )

    @property
    def _generation(self) -> int:
        return self._consumer.app.consumer_generation_id


# A larger fetch of one partition starves the others.
FETCH_BYTES = 1 << 20
# Records waiting for the stage; a record has 64 KiB.
BUFFERED_RECORDS = 64
_NEVER = 10.0**6
# Kafka's number of the type.
_LOG_APPEND_TIME = 1


def build_app(
    execution: Execution,
    connection: Connection,
    *,
    topic: str,
    group: str,
    client: str,
    instance: str,
    directory: Path,
    timings: Timings,
) -> AppT:
    """Return the application whose one agent shows every record of `topic` to `execution`.

    Args:
        execution: runs the stage.
        connection: the cluster.
        topic: what the agent reads.
        group: the consumer group.
        client: the client id.
        instance: the static member of the group; no two live processes may share it.
        directory: what Faust may write into.
        timings: session, heartbeat, rebalance and request timeouts.
    """
    app = App(
        group,
        monitor=SilentMonitor(),
        TableManager=NoTables,
        **{"broker_client_id": client, **connection.faust()},
        broker_session_timeout=timings.session,
        broker_heartbeat_interval=timings.heartbeat,
        broker_rebalance_timeout=timings.rebalance,
        broker_request_timeout=timings.request,
        broker_max_poll_records=None,
        # Offsets are committed by the stage, so Faust has nothing to commit and nothing to miss.
        broker_commit_interval=_NEVER,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        consumer_max_fetch_size=FETCH_BYTES,
        stream_buffer_maxsize=BUFFERED_RECORDS,
        # Otherwise rebalances and SIGTERM wait for events that nobody acknowledges.
        stream_wait_empty=False,
        key_serializer="raw",
        value_serializer="raw",
        store="memory://",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        datadir=str(directory),
        web_enabled=False,
        web_bind="127.0.0.1",
        web_tables_enabled=False,
        worker_redirect_stdouts=False,
        autodiscover=False,
    )
    app.transport.Consumer = partial(  # type: ignore[assignment,misc]  # a ClassVar of Faust's
        StageConsumer, execution=execution, topic=topic, timings=timings
    )

    async def show_records(stream: StreamT[bytes]) -> None:
        async for event in stream.events():
            message = event.message
            # Of a record that the broker has stamped; what its writer says is nobody's business.
            stamped = message.timestamp_type == _LOG_APPEND_TIME and message.timestamp is not None
            written = round(1000 * message.timestamp) if stamped else None
            await execution.record(
                message.partition,
                message.offset,
                message.value or b"",
                written,
                bare=message.key is None and not message.headers,
            )

    app.agent(app.topic(topic, value_type=bytes, acks=False), name="stage")(show_records)
    return app
