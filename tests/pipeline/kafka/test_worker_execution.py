"""Test that an execution runs a stage only during its partition assignment."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dpstream.pipeline.actions import (
    Action,
    Append,
    Commit,
    DeleteBelow,
    Ends,
    Flush,
    LogRecord,
    LogSlice,
    ReadRange,
    Steps,
)
from dpstream.pipeline.kafka.cluster_errors import PositionDeletedError, WorkerError
from dpstream.pipeline.kafka.workers import COMMITTED_BY, Committed, floor_of
from dpstream.pipeline.kafka.workers.execution import Execution
from dpstream.topics.names import Role
from tests.support.waiting import until


@dataclass
class ScriptedStage:
    on_assign: tuple[Action, ...] = ()
    on_record: tuple[Action, ...] = ()
    seen: list[str] = field(default_factory=list)
    replies: list[object] = field(default_factory=list)
    role: Role = Role.REPORTS
    needed: bool = True

    def assign(self, partition: int, committed: int | None, now: float) -> Steps[int]:
        self.seen.append(f"assign {partition} from {committed}")
        yield from self._ask(self.on_assign)
        return committed or 0

    def revoke(self, partition: int) -> None:
        self.seen.append(f"revoke {partition}")

    def record(
        self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
    ) -> Steps[None]:
        self.seen.append(f"record {partition}:{offset}")
        yield from self._ask(self.on_record)
        self.seen.append(f"done {partition}:{offset}")

    def tick(self, now: float) -> Steps[None]:
        self.seen.append("tick")
        yield from self._ask(())

    def idle_seconds(self) -> float | None:
        return None

    def needs(self, partition: int, below: int) -> Steps[bool]:
        yield from self._ask(())
        return self.needed

    def unfinished(self, partition: int) -> str:
        return f"epoch {partition} and later ones"

    def heartbeat(self) -> Mapping[str, object]:
        return {}

    def _ask(self, actions: tuple[Action, ...]) -> Steps[None]:
        try:
            for action in actions:
                self.replies.append((yield action))
        except GeneratorExit:
            self.seen.append("closed")
            raise


@dataclass
class World:
    """Log and consumer group as seen by an execution.

    A flush waits until `flushed` is set, and a deletion until `deleted` is set.
    """

    stage: ScriptedStage = field(default_factory=ScriptedStage)
    partitions: int = 4
    pause: float = 5.0
    now: float = 0.0
    ours: bool = True
    confirmations: int = 0
    committed_offsets: dict[int, int] = field(default_factory=dict)
    set_by_others: bool = False
    first: dict[int, int] = field(default_factory=dict)
    flowing_from: Mapping[int, int] | None = None
    carried_out: list[str] = field(default_factory=list)
    flushed: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: asyncio.Event = field(default_factory=asyncio.Event)
    delete_error: Exception | None = None
    failures: list[BaseException] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    shown: list[tuple[Role, int, LogRecord]] = field(default_factory=list)
    holes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.flushed.set()
        self.deleted.set()
        self.execution = Execution(
            self.stage,
            self,
            lambda role: f"job.{role}",
            starts=(0,) * self.partitions,
            pause=self.pause,
            report=self.reports.append,
            fail=self.failures.append,
            clock=lambda: self.now,
        )
        self.execution.membership = self

    async def append(self, action: Append) -> None:
        self.carried_out.append("append")

    async def flush(self) -> Ends:
        self.carried_out.append("flush")
        await self.flushed.wait()
        return {(Role.MANIFESTS, 0): 8}

    def note_shown(self, role: Role, partition: int, record: LogRecord) -> None:
        self.shown.append((role, partition, record))

    def forget_appends(self) -> None:
        self.carried_out.append("forget")

    async def settle(self, seconds: float) -> None:
        await asyncio.wait_for(self.flushed.wait(), seconds)

    async def read(self, role: Role, partition: int, start: int, stop: int) -> LogSlice:
        if start < self.first.get(partition, 0):
            raise PositionDeletedError(f"job.{role}", partition, start, self.first[partition])
        if start < self.holes.get(partition, 0):
            raise PositionDeletedError(
                f"job.{role}", partition, start, self.holes[partition], hole=True
            )
        return LogSlice((), start)

    async def ends(self, places: Collection[tuple[Role, int]]) -> Ends:
        return dict.fromkeys(places, 7)

    async def delete_below(self, role: Role, partition: int, offset: int) -> None:
        if self.delete_error is not None:
            raise self.delete_error
        self.carried_out.append(f"delete below {offset}")
        await self.deleted.wait()

    async def committed(self, partition: int) -> Committed | None:
        offset = self.committed_offsets.get(partition)
        return None if offset is None else Committed(offset, not self.set_by_others)

    async def commit(self, partition: int, offset: int) -> bool:
        if self.ours:
            self.carried_out.append(f"commit {partition}:{offset}")
        return self.ours

    async def confirm(self) -> bool:
        self.confirmations += 1
        return self.ours

    async def first_offsets(self, partitions: Collection[int]) -> Mapping[int, int]:
        return {partition: self.first.get(partition, 0) for partition in partitions}

    async def read_from(self, positions: Mapping[int, int]) -> None:
        self.flowing_from = dict(positions)

    async def own(self, *partitions: int) -> None:
        self.execution.assigned(partitions)
        await until(lambda: self.execution.restored or self.failures)
        self.stage.seen.clear()
        self.carried_out.clear()


async def test_execution_restores_every_partition_before_records_flow() -> None:
    world = World(committed_offsets={1: 40})
    await world.execution.record(1, 40, b"")
    await world.execution.tick()
    assert world.stage.seen == []
    await world.own(2, 1)
    assert world.flowing_from == {1: 40, 2: 0}
    assert world.reports == ["partitions: 1, 2"]


async def test_position_survives_a_lost_group_offset() -> None:
    """Deleting a topic also deletes its committed offsets, of which no other trace exists."""
    world = World(committed_offsets={0: 40, 1: 7})
    await world.own(0, 1)
    world.committed_offsets = {1: 9}
    await world.own(0, 1)
    assert world.flowing_from == {0: 0, 1: 9}
    assert world.execution.reached == {0: 40, 1: 9}


async def test_execution_passes_each_record_once_and_in_order() -> None:
    world = World()
    await world.own(0)
    for offset in (0, 1, 1, 0, 2):
        await world.execution.record(0, offset, b"four")
    await world.execution.record(5, 0, b"of another's partition")
    assert [line for line in world.stage.seen if "record" in line] == [
        "record 0:0",
        "record 0:1",
        "record 0:2",
    ]
    assert world.execution.positions == {0: 3}
    assert world.execution.records == 3


async def test_revoked_assignment_carries_out_no_further_actions() -> None:
    """A flush hangs, since the broker is unavailable, until the partition is reassigned."""
    stage = ScriptedStage(
        on_record=(Append(Role.SHUFFLED, 0, b""), Flush(), Commit(Role.REPORTS, 0, 1))
    )
    world = World(stage)
    await world.own(0)
    world.flushed.clear()
    working = asyncio.ensure_future(world.execution.record(0, 0, b""))
    await until(lambda: "flush" in world.carried_out)
    world.execution.revoked()
    await working
    assert stage.seen == ["record 0:0", "closed", "revoke 0"]
    assert world.carried_out == ["append", "flush", "forget"]
    assert world.failures == []
    await world.execution.record(0, 1, b"")
    await world.execution.tick()
    assert "record 0:1" not in stage.seen
    assert "tick" not in stage.seen


async def test_restoration_restarts_when_partitions_are_reassigned() -> None:
    stage = ScriptedStage(on_assign=(Flush(),))
    world = World(stage)
    world.flushed.clear()
    world.execution.assigned((0, 1))
    await until(lambda: "flush" in world.carried_out)
    world.flushed.set()
    await world.own(1)
    assert world.flowing_from == {1: 0}
    assert world.execution.positions == {1: 0}


async def test_rejected_commit_ends_the_assignment_before_deletions() -> None:
    stage = ScriptedStage(on_record=(Commit(Role.REPORTS, 0, 1), DeleteBelow(Role.REPORTS, 0, 1)))
    world = World(stage)
    await world.own(0)
    world.ours = False
    await world.execution.record(0, 0, b"")
    assert stage.seen == ["record 0:0", "closed", "revoke 0"]
    await asyncio.sleep(0)
    assert "delete below 1" not in world.carried_out
    assert not world.execution.restored
    assert world.failures == []


async def test_assignment_is_checked_after_a_pause() -> None:
    world = World()
    await world.own(0)
    world.execution.beat()
    await world.execution.record(0, 0, b"")
    assert world.confirmations == 0
    world.now += 5.1
    await world.execution.record(0, 1, b"")
    assert world.confirmations == 1
    await world.execution.record(0, 2, b"")
    assert world.confirmations == 1


async def test_action_is_skipped_when_partitions_are_lost_in_a_pause() -> None:
    class Paused(ScriptedStage):
        def record(
            self, partition: int, offset: int, value: bytes, now: float, written: int | None = None
        ) -> Steps[None]:
            yield Append(Role.SHUFFLED, 0, b"")
            world.now += 5.1
            world.ours = False
            yield Append(Role.SHUFFLED, 0, b"")

    world = World(Paused())
    await world.own(0)
    await world.execution.record(0, 0, b"")
    assert world.carried_out == ["append", "forget"]


async def test_error_reports_records_deleted_before_restoration() -> None:
    world = World(committed_offsets={3: 10}, first={3: 20})
    await world.own(3)
    [error] = world.failures
    assert "job.reports, partition 3: offsets 10 to 19 are needed but were deleted" in str(error)
    assert "epoch 3 and later ones cannot be released" in str(error)
    assert world.flowing_from is None
    assert not world.execution.restored


async def test_offset_committed_by_another_program_is_ignored() -> None:
    """The offset is far above the finished one; the topic still has unfinished records."""
    world = World(committed_offsets={1: 40}, set_by_others=True)
    world.execution.assigned([1])
    await until(lambda: world.execution.restored or world.failures)
    assert world.flowing_from == {1: 0}
    assert "commit 1:0" in world.carried_out
    assert any("another program set offset 40" in line for line in world.reports)


async def test_missing_records_are_an_error_despite_another_programs_offset() -> None:
    world = World(committed_offsets={1: 40}, set_by_others=True, first={1: 20})
    await world.own(1)
    [error] = world.failures
    assert "partition 1: offsets 0 to 19 are needed but were deleted" in str(error)
    assert not world.execution.restored


async def test_error_reports_records_deleted_while_running() -> None:
    world = World()
    await world.own(0)
    world.first[0] = 8
    await world.execution.record(0, 8, b"")
    [error] = world.failures
    assert "partition 0: offsets 0 to 7 are needed but were deleted" in str(error)
    assert world.stage.seen == ["revoke 0"]


async def test_records_skipped_by_faust_end_the_worker() -> None:
    world = World()
    await world.own(0)
    await world.execution.record(0, 2, b"")
    [error] = world.failures
    assert isinstance(error, WorkerError)
    assert "expected offset 0, got 2. No record is lost" in str(error)


async def test_deletions_by_a_successor_are_not_an_error() -> None:
    """A worker that does not know yet that it was replaced reads records that are deleted."""
    stage = ScriptedStage(on_record=(ReadRange(Role.REPORTS, 0, 0, 4),))
    world = World(stage)
    await world.own(0)
    world.first[0] = 4
    world.ours = False
    await world.execution.record(0, 0, b"")
    assert world.failures == []
    assert not world.execution.restored


async def test_unanswered_deletion_does_not_block_records() -> None:
    stage = ScriptedStage()
    world = World(stage)
    await world.own(0, 1)
    world.deleted.clear()
    for offset in range(4):
        stage.on_record = (DeleteBelow(Role.REPORTS, 0, offset + 1),)
        await world.execution.record(0, offset, b"")
        await asyncio.sleep(0)
    stage.on_record = (DeleteBelow(Role.REPORTS, 1, 9),)
    await world.execution.record(1, 0, b"")
    await until(lambda: "delete below 9" in world.carried_out)
    assert stage.seen[-1] == "done 1:0"
    assert world.carried_out == ["delete below 1", "delete below 9"]
    world.deleted.set()
    await until(lambda: len(world.carried_out) == 3)
    await world.execution.record(1, 1, b"")
    await until(lambda: len(world.carried_out) == 4)
    assert world.carried_out[2:] == ["delete below 4", "delete below 9"]
    assert world.failures == []


async def test_unexpected_deletion_error_ends_the_worker() -> None:
    stage = ScriptedStage(on_record=(DeleteBelow(Role.REPORTS, 0, 1),))
    world = World(stage, delete_error=ArithmeticError("broken"))
    await world.own(0)
    await world.execution.record(0, 0, b"")
    await until(lambda: world.failures)
    assert isinstance(world.failures[0], ArithmeticError)


async def test_exception_in_a_stage_ends_the_worker() -> None:
    class Broken(ScriptedStage):
        def tick(self, now: float) -> Steps[None]:
            yield Flush()
            raise ArithmeticError("broken")

    world = World(Broken())
    await world.own(0)
    await world.execution.tick()
    assert [str(failure) for failure in world.failures] == ["broken"]
    await world.execution.record(0, 0, b"")
    assert world.stage.seen == ["revoke 0"]


@pytest.mark.parametrize(
    ("found", "committed", "floor"),
    [
        (None, None, 0),
        (SimpleNamespace(offset=-1, metadata=""), None, 0),
        (SimpleNamespace(offset=7, metadata=COMMITTED_BY), Committed(7), 7),
        # Tools that set offsets leave metadata empty, or write their own.
        (SimpleNamespace(offset=7, metadata=""), Committed(7, own=False), 0),
        (SimpleNamespace(offset=7, metadata=None), Committed(7, own=False), 0),
        (SimpleNamespace(offset=7, metadata="reset"), Committed(7, own=False), 0),
    ],
)
def test_committed_offset_of_another_program_is_ignored(
    found: Any, committed: Committed | None, floor: int
) -> None:
    assert Committed.of(found) == committed
    assert floor_of(committed) == floor
