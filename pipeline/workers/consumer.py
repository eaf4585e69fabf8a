"""Faust's consumer, with the stage's restoration where Faust only seeks.

Faust lets records flow as soon as it has sought the committed offsets. Here the flow stays shut
until the stage has restored its partitions and said from where it wants to read, and offsets are
committed only when the stage asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import aiokafka
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata
from faust.transport.consumer import RecordMap
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer
from faust.types import TP, Message

from pipeline.workers.execution import Execution
from pipeline.workers.patience import RETRY_SECONDS, patiently

_FETCH_WAIT_MILLISECONDS = 50
# Faust leaves a partition with a full buffer out of the next fetch, and waits up to a second for
# the idle ones while that buffer runs empty.
_POLL_SECONDS = 0.02


class StageConsumer(Consumer):
    """Tells an `Execution` which partitions of its topic it has."""

    _thread: StageConsumerThread

    def __init__(self, *args: Any, execution: Execution, topic: str, **kwargs: Any) -> None:
        self._execution = execution
        self._dropped = False
        super().__init__(*args, **kwargs)
        execution.membership = GroupMembership(self, self._thread, topic)
        self.stop_flow()

    def _new_consumer_thread(self) -> StageConsumerThread:
        return StageConsumerThread(self, loop=self.loop, beacon=self.beacon)

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

    def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Message]]:
        """Fetch some records, and look again soon for which partitions there is room."""
        return super().getmany(min(timeout, _POLL_SECONDS))

    async def _wait_next_records(self, timeout: float) -> tuple[RecordMap | None, set[TP] | None]:
        if self.flow_active and not self._get_active_partitions():
            await asyncio.sleep(_POLL_SECONDS)
            return None, None
        return await super()._wait_next_records(timeout)

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


class StageConsumerThread(AIOKafkaConsumerThread):
    """Faust's consumer thread; what is added here runs in it."""

    _committing: asyncio.Task[None] | None = None

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Faust's 1,500 ms let one long poll over idle partitions delay the busy one.
        consumer._fetch_max_wait_ms = _FETCH_WAIT_MILLISECONDS
        return consumer

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        """Stay silent: the worker says in one line why it ends."""

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Stop committing: a late commit could undo one of the next assignment."""
        if self._committing is not None:
            self._committing.cancel()
        await super().on_partitions_revoked(revoked)

    async def committed(self, where: TP) -> int | None:
        """The committed offset of a partition."""
        offset: int | None = await self._ensure_consumer().committed(TopicPartition(*where))
        return offset

    async def commit_offset(self, where: TP, offset: int, generation: int) -> bool:
        """Commit an offset; False if the group has gone on to another generation.

        Waits for a broker that is away.
        """
        consumer = self._ensure_consumer()
        if consumer._coordinator.generation != generation:
            return False
        offsets = {TopicPartition(*where): OffsetAndMetadata(offset, "")}
        self._committing = asyncio.ensure_future(consumer.commit(offsets))
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
        coordinator = self._ensure_consumer()._coordinator
        while coordinator.generation == generation:
            await coordinator.ensure_coordinator_known()
            if await coordinator._do_heartbeat():
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False


class GroupMembership:
    """The `Membership` of an `Execution`, through Faust's consumer and its thread."""

    def __init__(self, consumer: StageConsumer, thread: StageConsumerThread, topic: str) -> None:
        self._consumer = consumer
        self._thread = thread
        self._topic = topic

    async def committed(self, partition: int) -> int | None:
        """The committed offset of a partition."""
        offset: int | None = await self._thread.call_thread(
            self._thread.committed, TP(self._topic, partition)
        )
        return offset

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
