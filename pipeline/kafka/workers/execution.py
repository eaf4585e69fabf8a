"""Runs one stage: its partitions, its steps, one at a time.

Everything a stage does belongs to an assignment. When Kafka takes the partitions back, the steps
under way are closed where they stand, and nothing they would have asked for later is carried out.
Between two assignments no record reaches the stage: the next one begins with restoring every
partition, and with the offsets from which the stage wants to read.
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
from dpstream.pipeline.kafka.workers.groups import Committed
from dpstream.pipeline.stages.stage import Stage
from dpstream.topics.names import Role

T = TypeVar("T")


class Log(Protocol):
    """Where actions are carried out; `dpstream.pipeline.kafka.workers.kafka_log.KafkaLog` in a
    worker.
    """

    async def append(self, action: Append) -> None:
        """Take a record, for `flush` to wait for."""

    async def flush(self) -> Ends:
        """Wait until everything appended has been acknowledged, or raise why it was not.

        Returns what is known of where it lies: see `dpstream.pipeline.actions.Flush`.
        """

    def note_shown(self, role: Role, partition: int, record: LogRecord) -> None:
        """A record has come that the stage may ask for: nobody need be asked for it."""

    def forget_appends(self) -> None:
        """Make what was appended so far nobody's business."""

    async def settle(self, seconds: float) -> None:
        """Wait until nothing that was appended is still on its way, but not longer than this."""

    async def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        """Read some records from `start` to before `stop`."""

    async def ends(self, places: Collection[tuple[Role, int]]) -> Ends:
        """The offsets that the next records of partitions will get."""

    async def delete_below(self, role: Role, partition: int, offset: int) -> None:
        """Delete a partition's records below `offset`; raises `KafkaError` if that fails."""


class WorkerMembership(Protocol):
    """The worker's place in its consumer group."""

    async def committed(self, partition: int) -> Committed | None:
        """The committed offset of a partition."""

    async def commit(self, partition: int, offset: int) -> bool:
        """Commit an offset; False if the partitions are no longer ours."""

    async def confirm(self) -> bool:
        """Ask the broker whether the partitions are still ours."""

    async def first_offsets(self, partitions: Collection[int]) -> Mapping[int, int]:
        """The offset at which each partition begins."""

    async def read_from(self, positions: Mapping[int, int]) -> None:
        """Let records flow, from these offsets."""


class Execution:
    """One stage, and the partitions it has at the moment.

    Args:
        stage: the stage to run.
        log: carries out what it asks for.
        topic: names the topic of a role, for messages.
        starts: where the deployment begins in each partition of the topic; others are not read.
        pause: seconds without `beat` after which the membership is confirmed before going on.
        report: is told of new partitions, and of what failed and does not matter.
        fail: is told of the error after which nothing more is done.
        clock: seconds, of any origin.
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
        """Records that the stage was shown, and those that it has written, be it on taking over."""
        return self.records + self.appends

    def revoked(self) -> None:
        """The partitions are no longer ours: drop whatever is going on, and forget them."""
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
        """Let what was written arrive before others read where we stopped, if it does so soon."""
        await self._log.settle(self._pause)

    def assigned(self, partitions: Collection[int]) -> None:
        """These partitions are ours: restore them, and let their records flow."""
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
        """Show the stage a record, if it is the next one of a partition that is ours.

        Args:
            partition: of its topic.
            offset: of the record.
            value: of it.
            written: as of `dpstream.pipeline.stages.stage.Stage.record`.
            bare: whether it has neither key nor headers.
        """
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
        """Let time pass for the stage."""
        async with self._lock:
            if self.restored:
                await self._attempt(self._run(self._stage.tick(self._clock())))

    def beat(self) -> None:
        """This process runs; to be called often, whatever the stage is doing."""
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
        # The group's offsets go with a topic: one made again must not look like a beginning.
        for partition, position in positions.items():
            self.reached[partition] = max(position, self.reached.get(partition, 0))
        # What a stage has committed while it was restored is in neither of the two.
        self.committed = floors | self.committed
        self.restored = True
        numbers = ", ".join(map(str, partitions)) or "none"
        self._report(f"partitions: {numbers}")

    async def _floor(self, partition: int, first: int) -> int | None:
        """The offset below which everything is finished, if one is known.

        What another program committed is no such offset. Where the topic begins above it and
        nothing that was deleted is needed any more, it is where the topic begins.
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
                f"{topic}: offset {committed.offset} was set by another program; reading from "
                f"{begin}, where the topic begins"
            )
        elif cut:
            self._report(
                f"{topic}: the group has lost its offset; reading from {begin}, where the topic "
                "begins, since everything below is published"
            )
        else:
            return floor
        await self._commit(self._stage.role, partition, begin)
        return begin

    async def _attempt(self, work: Awaitable[object]) -> bool:
        """Do some work under the lock; returns whether it was done."""
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
                    # The worker that took over from us deletes what it has finished.
                    await self._confirm()
                    raise
                self.actions += 1
        finally:
            self._steps = None
            steps.close()

    async def _await(self, work: Awaitable[T]) -> T:
        """Wait for something, no longer than the assignment lasts."""
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
        """Go on after a pause only if nobody else was given the partitions meanwhile."""
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
        # Raises the same where records between others are gone.
        await self._await(self._log.read(self._stage.role, partition, expected, offset))
        raise WorkerError(
            f"{topic}, partition {partition}: offset {expected} was due and {offset} came, though "
            "nothing is lost: start me again"
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
            raise WorkerError(f"a stage that reads {self._stage.role} cannot commit {role}")
        if await self.membership.commit(partition, offset):
            self.committed[partition] = offset
        else:
            self.revoked()

    def _delete_below(self, role: Role, partition: int, offset: int) -> None:
        """Have records deleted while the stage goes on.

        A broker waits for all replicas before it answers, for as long as a client waits for it: for
        one of them that is cut off, no window is to wait.
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
                        f"{self._topic(role)}, partition {partition}: records below {offset} "
                        f"could not be deleted ({error}); retention will do it"
                    )
        except Exception as error:
            self._fail(error)
        finally:
            del self._deleting[role, partition]
