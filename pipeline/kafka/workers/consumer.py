"""Extend Faust's consumer to restore the stage before it reads records.

Faust lets records flow as soon as it has moved to the committed offsets. This consumer stops the
flow until the stage has restored its partitions and returned the offsets at which to read. Offsets
are committed only when the stage requests that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata
from faust.types import TP

from dpstream.pipeline.kafka.workers import COMMITTED_BY, Committed
from dpstream.pipeline.kafka.workers.broker_outage import RETRY_SECONDS, repeat_until_answered
from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.pipeline.kafka.workers.internals import (
    ClientThread,
    PromptConsumer,
)
from dpstream.pipeline.kafka.workers.timings import Timings


class StageConsumer(PromptConsumer):
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
        thread = StageConsumerThread(self, loop=self.loop, beacon=self.beacon)
        thread.timings = self.timings
        return thread

    def stop_flow(self) -> None:
        """Close the flow and drop the partitions, for a rebalance or when the worker stops."""
        super().stop_flow()
        self._execution.revoked()

    def resume_flow(self) -> None:
        """Restore the partitions, then open the flow, once Faust is ready for records."""
        super().stop_flow()
        self._execution.assigned([tp.partition for tp in self.assignment()])

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        self.stop_flow()
        await self._execution.settle()
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Record that Faust has dropped records fetched while the flow was closed."""
        self._dropped = True

    async def flow_from(self, offsets: Mapping[TP, int]) -> None:
        while True:
            self._dropped = False
            await self.seek_wait(offsets)
            if not self._dropped:
                break
        super().resume_flow()


class StageConsumerThread(ClientThread):
    _committing: asyncio.Task[None] | None = None

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        """Log nothing, because the worker itself logs one line with the reason."""

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Stop committing: a late commit could undo one by the partition's next owner."""
        if self._committing is not None:
            self._committing.cancel()
        await super().on_partitions_revoked(revoked)

    async def committed(self, where: TP) -> Committed | None:
        return Committed.of(await self.committed_with_metadata(TopicPartition(*where)))

    async def commit_offset(self, where: TP, offset: int, generation: int) -> bool:
        """Commit an offset, after any outage; return False if the generation is over."""
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
        """Return, after any outage, whether the coordinator confirms this generation."""
        while self.generation == generation:
            if await self.heartbeat():
                return True
            await asyncio.sleep(RETRY_SECONDS)
        return False


class GroupMembership:
    def __init__(self, consumer: StageConsumer, thread: StageConsumerThread, topic: str) -> None:
        self._consumer = consumer
        self._thread = thread
        self._topic = topic

    async def committed(self, partition: int) -> Committed | None:
        found: Committed | None = await self._thread.call_thread(
            self._thread.committed, TP(self._topic, partition)
        )
        return found

    async def commit(self, partition: int, offset: int) -> bool:
        done: bool = await self._thread.call_thread(
            self._thread.commit_offset, TP(self._topic, partition), offset, self._generation
        )
        return done

    async def confirm(self) -> bool:
        ours: bool = await self._thread.call_thread(self._thread.confirm, self._generation)
        return ours

    async def first_offsets(self, partitions: Collection[int]) -> Mapping[int, int]:
        where = [TP(self._topic, partition) for partition in partitions]
        firsts = await repeat_until_answered(lambda: self._consumer.earliest_offsets(*where))
        return {tp.partition: offset for tp, offset in firsts.items()}

    async def read_from(self, positions: Mapping[int, int]) -> None:
        await self._consumer.flow_from(
            {TP(self._topic, partition): offset for partition, offset in positions.items()}
        )

    @property
    def _generation(self) -> int:
        return self._consumer.app.consumer_generation_id
