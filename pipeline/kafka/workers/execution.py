"""Run one stage: its partitions and its steps, one at a time.

* All work of a stage belongs to an assignment of partitions. When Kafka revokes the partitions, the
  current steps are closed, and none of their further actions are carried out.
* Between two assignments, no record reaches the stage. An assignment starts by restoring every
  partition, which determines the offsets at which to read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from aiokafka.errors import KafkaError

from dpstream.pipeline.actions import (
    Action,
    Append,
    Commit,
    DeleteBelow,
    EndOffsets,
    Ends,
    Flush,
    LogRecord,
    LogSlice,
    ReadRange,
    Steps,
    Yield,
)
from dpstream.pipeline.kafka.cluster_errors import (
    AbandonedError,
    AccessError,
    PositionDeletedError,
    WorkerError,
)
from dpstream.pipeline.kafka.workers import Committed
from dpstream.pipeline.stages.stage import Stage
from dpstream.topics.names import Role

T = TypeVar("T")


class Log(Protocol):
    """Executor of actions; in a worker, `dpstream.pipeline.kafka.workers.kafka_log.KafkaLog`."""

    async def append(self, action: Append) -> None: ...

    async def flush(self) -> Ends:
        """Wait until all appended records are acknowledged; return known end offsets."""

    def note_shown(self, role: Role, partition: int, record: LogRecord) -> None:
        """Cache a record that the stage might read again, so that it need not be fetched."""

    def forget_appends(self) -> None:
        """Ignore the outcome of all records appended so far."""

    async def settle(self, seconds: float) -> None:
        """Wait until no appended record is in flight, for at most `seconds`."""

    async def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice: ...

    async def ends(self, places: Collection[tuple[Role, int]]) -> Ends: ...

    async def delete_below(self, role: Role, partition: int, offset: int) -> None:
        """Delete a partition's records below `offset`; raise `KafkaError` on failure."""


class WorkerMembership(Protocol):
    async def committed(self, partition: int) -> Committed | None: ...

    async def commit(self, partition: int, offset: int) -> bool: ...

    async def confirm(self) -> bool:
        """Return whether the broker confirms that the partitions are still assigned here."""

    async def first_offsets(self, partitions: Collection[int]) -> Mapping[int, int]: ...

    async def read_from(self, positions: Mapping[int, int]) -> None: ...


class Execution:
    """One stage and its current partitions, each read from the start offset in `starts`.

    After `pause` seconds without a call of `beat`, group membership is confirmed before work
    continues. `fail` is called with the error that ends the execution.
    """

    membership: WorkerMembership

    def __init__(
        self,
        stage: Stage,
        log: Log,
        topic: Callable[[Role], str],
        *,
        starts: Sequence[int],
        pause: float,
        report: Callable[[str], None],
        fail: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.positions: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.reached: dict[int, int] = {}
        self.restored = False
        self.records = 0
        self.appends = 0
        self.actions = 0
        self._stage = stage
        self._log = log
        self._topic = topic
        self._starts = starts
        self._pause = pause
        self._report = report
        self._fail = fail
        self._clock = clock
        self._lock = asyncio.Lock()
        self._assignment = object()
        self._steps: Steps[Any] | None = None
        self._waiting: asyncio.Future[Any] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._owned: tuple[int, ...] = ()
        self._doomed: dict[tuple[Role, int], int] = {}
        self._deleting: dict[tuple[Role, int], asyncio.Task[None]] = {}
        self._last_beat = clock()
        self._paused = False

    @property
    def done(self) -> int:
        return self.records + self.appends

    def revoked(self) -> None:
        self._assignment = object()
        self.restored = False
        self.positions = {}
        self.committed = {}
        if self._steps is not None:
            self._steps.close()
        for partition in self._owned:
            self._stage.revoke(partition)
        self._owned = ()
        self._log.forget_appends()
        if self._waiting is not None:
            self._waiting.cancel()
        if self._restoring is not None:
            self._restoring.cancel()
            self._restoring = None

    async def settle(self) -> None:
        """Wait briefly until records in flight are written, before another worker takes over."""
        await self._log.settle(self._pause)

    def assigned(self, partitions: Collection[int]) -> None:
        self.revoked()
        self._owned = tuple(sorted(p for p in partitions if p < len(self._starts)))
        self._restoring = asyncio.create_task(self._restore(self._owned))

    async def record(
        self,
        partition: int,
        offset: int,
        value: bytes,
        written: int | None = None,
        *,
        bare: bool = False,
    ) -> None:
        """Pass on a partition's next record; a `bare` one has neither key nor headers."""
        async with self._lock:
            expected = self.positions.get(partition)
            if expected is None or offset < expected:
                return
            if offset > expected:
                await self._attempt(self._explain_gap(partition, expected, offset))
                return
            self.records += 1
            if bare and written is not None:
                shown = LogRecord(offset, value, written)
                self._log.note_shown(self._stage.role, partition, shown)
            steps = self._stage.record(partition, offset, value, self._clock(), written)
            if await self._attempt(self._run(steps)):
                self.positions[partition] = self.reached[partition] = offset + 1

    async def tick(self) -> None:
        async with self._lock:
            if self.restored:
                await self._attempt(self._run(self._stage.tick(self._clock())))

    def beat(self) -> None:
        now = self._clock()
        self._paused = self._paused or now - self._last_beat > self._pause
        self._last_beat = now

    async def _restore(self, partitions: tuple[int, ...]) -> None:
        async with self._lock:
            await self._attempt(self._restore_all(partitions))

    async def _restore_all(self, partitions: tuple[int, ...]) -> None:
        positions, floors = {}, {}
        firsts = await self._await(self.membership.first_offsets(partitions))
        for partition in partitions:
            committed = await self._floor(partition, firsts[partition])
            steps = self._stage.assign(partition, committed, self._clock())
            positions[partition] = await self._run(steps)
            floors[partition] = positions[partition] if committed is None else committed
        for partition, position in positions.items():
            if firsts[partition] > position:
                await self._confirm()
                raise PositionDeletedError(
                    self._topic(self._stage.role), partition, position, firsts[partition]
                )
        await self._await(self.membership.read_from(positions))
        self.positions = positions
        # Deleting a topic also deletes the group's offsets, but a recreated topic must not look
        # new.
        for partition, position in positions.items():
            self.reached[partition] = max(position, self.reached.get(partition, 0))
        # Offsets that the stage committed during its restoration are in neither mapping.
        self.committed = floors | self.committed
        self.restored = True
        numbers = ", ".join(map(str, partitions)) or "none"
        self._report(f"partitions: {numbers}")

    async def _floor(self, partition: int, first: int) -> int | None:
        """Return the offset below which everything is finished, if known.

        An offset committed by another program is ignored. If the topic starts above the finished
        offset, and no deleted record is still needed, the topic's start is returned.
        """
        committed = await self._await(self.membership.committed(partition))
        floor = committed.offset if committed is not None and committed.own else None
        start = self._starts[partition]
        cut = first > max(floor or 0, start)
        if cut:
            await self._confirm()
            if await self._run(self._stage.needs(partition, first)):
                return floor
        topic = f"{self._topic(self._stage.role)}, partition {partition}"
        begin = max(first, start)
        if committed is not None and not committed.own:
            self._report(
                f"{topic}: another program set offset {committed.offset}; reading from "
                f"{begin}, the start of the topic"
            )
        elif cut:
            self._report(
                f"{topic}: the group's offset is lost; reading from {begin}, the start of the "
                "topic, because everything before it is published"
            )
        else:
            return floor
        await self._commit(self._stage.role, partition, begin)
        return begin

    async def _attempt(self, work: Awaitable[object]) -> bool:
        try:
            await work
        except AbandonedError:
            return False
        except PositionDeletedError as error:
            failure = error.naming(self._stage.unfinished(error.partition))
            self.revoked()
            self._fail(failure)
            return False
        except Exception as error:
            self.revoked()
            self._fail(error)
            return False
        return True

    async def _run(self, steps: Steps[T]) -> T:
        self._steps = steps
        reply: object = None
        try:
            await self._confirm_after_pause()
            while True:
                try:
                    action = steps.send(reply)
                except StopIteration as finished:
                    result: T = finished.value
                    return result
                await self._confirm_after_pause()
                try:
                    reply = await self._await(self._carry_out(action))
                except PositionDeletedError:
                    # Another worker might have taken over and deleted finished records.
                    await self._confirm()
                    raise
                self.actions += 1
        finally:
            self._steps = None
            steps.close()

    async def _await(self, work: Awaitable[T]) -> T:
        assignment = self._assignment
        waiting = self._waiting = asyncio.ensure_future(work)
        try:
            result: T = await waiting
        except (asyncio.CancelledError, Exception):
            if assignment is self._assignment:
                raise
            raise AbandonedError from None
        finally:
            self._waiting = None
        if assignment is not self._assignment:
            raise AbandonedError
        return result

    async def _confirm_after_pause(self) -> None:
        """After a pause, continue only if the partitions have not been reassigned."""
        if self._paused or self._clock() - self._last_beat > self._pause:
            await self._confirm()

    async def _confirm(self) -> None:
        if not await self._await(self.membership.confirm()):
            self.revoked()
            raise AbandonedError
        self._paused = False
        self._last_beat = self._clock()

    async def _explain_gap(self, partition: int, expected: int, offset: int) -> None:
        await self._confirm()
        firsts = await self._await(self.membership.first_offsets((partition,)))
        topic = self._topic(self._stage.role)
        if firsts[partition] > expected:
            raise PositionDeletedError(topic, partition, expected, firsts[partition])
        # Raises the same error if records in between are missing.
        await self._await(self._log.read(self._stage.role, partition, expected, offset))
        raise WorkerError(
            f"{topic}, partition {partition}: expected offset {expected}, got {offset}. "
            "No record is lost: restart this worker"
        )

    async def _carry_out(self, action: Action) -> object:
        match action:
            case Append():
                self.appends += 1
                await self._log.append(action)
            case Flush():
                return await self._log.flush()
            case ReadRange(role, partition, start, stop):
                return await self._log.read(role, partition, start, stop)
            case EndOffsets(places):
                return await self._log.ends(places)
            case Commit(role, partition, offset):
                await self._commit(role, partition, offset)
            case DeleteBelow(role, partition, offset):
                self._delete_below(role, partition, offset)
            case Yield():
                await asyncio.sleep(0)
        return None

    async def _commit(self, role: Role, partition: int, offset: int) -> None:
        if role is not self._stage.role:
            raise WorkerError(
                f"a stage that reads {self._stage.role} cannot commit offsets of {role}"
            )
        if await self.membership.commit(partition, offset):
            self.committed[partition] = offset
        else:
            self.revoked()

    def _delete_below(self, role: Role, partition: int, offset: int) -> None:
        """Delete records in the background.

        A broker answers only after all replicas have deleted the records, or at the timeout.
        Windows must not wait for a replica that is cut off.
        """
        self._doomed[role, partition] = offset
        if (role, partition) not in self._deleting:
            deleting = asyncio.create_task(self._delete(role, partition))
            self._deleting[role, partition] = deleting

    async def _delete(self, role: Role, partition: int) -> None:
        try:
            while (offset := self._doomed.pop((role, partition), None)) is not None:
                try:
                    await self._log.delete_below(role, partition, offset)
                except (KafkaError, AccessError) as error:
                    self._report(
                        f"{self._topic(role)}, partition {partition}: cannot delete records below "
                        f"{offset} ({error}). They will be deleted when their retention ends"
                    )
        except Exception as error:
            self._fail(error)
        finally:
            del self._deleting[role, partition]
