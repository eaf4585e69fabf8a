"""Test workers that exit when idle and are only woken by end offsets: they finish all work."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryWorker
from dpstream.pipeline.stages.idle_condition import (
    IdleCondition,
    initial_idle_condition,
    waking_roles,
)
from dpstream.topics.chunks import Chunk, encode_chunk
from dpstream.topics.messages import Messages
from dpstream.topics.names import Role
from tests.support.device_world import GRACE, DeviceWorld, Sent, device_job
from tests.support.new_jobs import new_job
from tests.support.world import World, own_cells, reader_of

EPOCHS = 4
CELLS = 30


def cells_job(instances: int = 1, calendar: bool = False, **shuffle: object) -> DeployedJob:
    times = {"start": "2023-11-14T22:13:20Z", "length": "PT100S"} if calendar else {}
    job = new_job(
        "rests",
        "cells",
        {"cells": CELLS},
        epochs={"count": EPOCHS, **times},
        shuffle={
            "minimum": 10,
            "grace": "60 s",
            "producers": 2,
            **({"instances": instances} if instances > 1 else {}),
            **shuffle,
        },
        partitions=2,
    )
    return deploy_job(job, deployment=bytes(16), deployed_at=0)


class IdlingWorkers:
    """Workers of a world: each exits when idle and starts when woken."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.idle: dict[str, tuple[IdleCondition, float]] = {}
        for stage in world.job.route.stages:
            condition = initial_idle_condition(world.job, stage)
            if condition is not None:
                self.idle[stage] = condition, world.now
        self.starts = 0

    def ends(self, stage: str) -> dict[Role, tuple[int, ...]]:
        job, log = self.world.job, self.world.log
        return {
            role: tuple(log.end(role, number) for number in range(len(job.start_offsets[role])))
            for role in waking_roles(job, stage)
        }

    def work(self) -> None:
        for stage in self.world.job.route.stages:
            condition = self.idle.get(stage)
            if condition is not None:
                until = condition[1] + condition[0].seconds
                if condition[0].holds(self.ends(stage)) and self.world.now < until:
                    continue
                del self.idle[stage]
                self.starts += 1
            self.world.settle([stage])
            ends = self.ends(stage)
            self.world.settle([stage])
            self._mark_idle(stage, ends)

    def work_until_all_idle(self) -> None:
        for _ in range(20):
            self.work()
            if len(self.idle) == len(self.world.job.route.stages):
                return
            self.world.now += 10.0
        pytest.fail("not all stages rest")

    def _mark_idle(self, stage: str, ends: dict[Role, tuple[int, ...]]) -> None:
        worker = self.world.worker(stage)
        role, committed = worker.stage.role, self.world.log.committed_by[reader_of(stage)]
        finished = all(
            committed.get((role, number), self.world.job.start_offset(role, number)) == end
            for number, end in enumerate(ends[role])
        )
        seconds = worker.stage.idle_seconds()
        if finished and seconds is not None:
            self.idle[stage] = IdleCondition(ends, seconds), self.world.now
            self.world.kill(stage)


def summary(world: World) -> dict[int, tuple[object, ...]]:
    return {
        epoch: (record.window_status, record.contributors, record.population)
        for epoch, record in world.published().items()
    }


@pytest.mark.usefixtures("cells_protocol")
@pytest.mark.parametrize(
    "make",
    [
        cells_job,
        lambda: cells_job(instances=2),
        lambda: cells_job(calendar=True),
    ],
    ids=["plain", "instances", "calendar"],
)
def test_workers_that_idle_between_records_publish_the_same_results(
    folder: Path, make: Callable[[], DeployedJob]
) -> None:
    published = []
    for idle in (False, True):
        world = World(make(), folder / str(idle), own_cells(CELLS, EPOCHS))
        workers = IdlingWorkers(world)
        world.now = 1000.0
        # The south is missing from epoch 3, and epoch 2 has no reports.
        for name, epoch in (
            ("north", 1), ("south", 1), ("north", 3), ("south", 4), ("north", 4),
        ):  # fmt: skip
            world.close_epoch(name, epoch)
            for _ in range(3):
                workers.work() if idle else world.settle()
                world.now += 1.0
        for _ in range(12):
            world.now += 30.0
            workers.work() if idle else world.settle()
        if idle:
            workers.work_until_all_idle()
            # Spurious wake-ups cause no writes.
            before = summary(world)
            world.settle()
            assert summary(world) == before
        world.shut()
        published.append(summary(world))
        assert sorted(published[-1]) == [1, 2, 3, 4]
    assert published[0] == published[1]
    assert workers.starts > 2 * len(world.job.route.stages)


@pytest.mark.usefixtures("cells_protocol")
def test_open_window_keeps_only_the_stage_with_that_window_awake(folder: Path) -> None:
    world = World(cells_job(), folder, own_cells(CELLS, EPOCHS))
    workers = IdlingWorkers(world)
    assert set(workers.idle) == {"shuffle", "aggregate", "publish"}
    assert {condition.seconds for condition, _ in workers.idle.values()} == {math.inf}, (
        "no clock wakes them"
    )
    world.close_epoch("north", 1)
    workers.work()
    assert set(workers.idle) == {"aggregate", "publish"}
    assert world.worker("shuffle").stage.idle_seconds() is None
    world.close_epoch("south", 1)
    workers.work()
    workers.work_until_all_idle()
    assert sorted(world.published()) == [1]
    world.shut()


@pytest.mark.usefixtures("cells_protocol")
def test_skipped_epoch_keeps_the_stage_awake_that_must_finalize_it(
    folder: Path,
) -> None:
    world = World(cells_job(calendar=True), folder, own_cells(CELLS, EPOCHS))
    shuffle = world.worker("shuffle").stage
    for epoch, now in ((1, 150.0), (3, 151.0)):
        world.now = now
        for name in ("north", "south"):
            world.close_epoch(name, epoch)
            world.settle()
        assert epoch in world.manifests()
        assert shuffle.idle_seconds() == (math.inf if epoch == 1 else None)
    for world.now in (201.0, 262.0):
        world.settle()
    assert sorted(world.manifests()) == [1, 2, 3]
    assert shuffle.idle_seconds() == math.inf
    world.shut()


@pytest.mark.usefixtures("cells_protocol")
def test_parallel_shuffler_is_awake_until_it_writes_its_manifest(
    folder: Path,
) -> None:
    world = World(cells_job(instances=2), folder, own_cells(CELLS, EPOCHS))
    stage = world.stage("instance-2")
    other = MemoryWorker(stage, world.log, reader="other")
    assert stage.idle_seconds() is None, "a stage without partitions is not idle"
    other.run(other.assign(0))
    assert stage.idle_seconds() == math.inf
    # Epoch 1 is in the other partition.
    world.close_all(1)
    world.settle(["shuffle"])
    other.run(other.drain())
    assert stage.idle_seconds() is None
    world.settle()
    other.run(other.drain())
    assert stage.idle_seconds() == math.inf
    world.shut()


@pytest.mark.usefixtures("cells_protocol")
def test_incomplete_window_keeps_the_aggregator_awake(folder: Path) -> None:
    world = World(cells_job(), folder, own_cells(CELLS, EPOCHS))
    aggregate = world.worker("aggregate").stage
    seconds = []
    for index in range(2):
        seconds.append(aggregate.idle_seconds())
        chunk = Chunk(
            world.job.fingerprint, world.job.deployment, 1, 0, bytes(16), index, 2,
            Messages(np.array([[index]], "<u2")),
        )  # fmt: skip
        world.log.append(Append(Role.SHUFFLED, 1, encode_chunk(chunk)))
        world.settle(["aggregate"])
    assert [*seconds, aggregate.idle_seconds()] == [math.inf, None, math.inf]
    world.shut()


def test_stages_of_a_device_job_idle_until_the_epoch_ends() -> None:
    world = DeviceWorld(device_job())
    workers = IdlingWorkers(world)
    assert set(workers.idle) == {"aggregate", "publish"}
    world.at(1, 20)
    workers.work()
    condition, _ = workers.idle["shuffle"]
    assert condition.seconds == pytest.approx(80.0, abs=0.01)
    world.at(1, 50)
    world.collect(1, [Sent(device, [1], True) for device in range(5)])
    workers.work()
    assert "shuffle" not in workers.idle
    world.at(2, GRACE + 1)
    workers.work()
    workers.work_until_all_idle()
    assert sorted(world.published()) == [1]
    # No more reports arrive: the calendar advances regardless.
    for _ in range(20):
        world.now += 50.0
        workers.work()
    assert sorted(world.published())[:3] == [1, 2, 3]
    world.shut()


def test_stages_of_a_device_job_idle_forever_after_the_last_epoch() -> None:
    world = DeviceWorld(device_job(count=2))
    workers = IdlingWorkers(world)
    for epoch in (1, 2):
        world.at(epoch, 50)
        world.collect(epoch, [Sent(device, [1], True) for device in range(5)])
        workers.work()
    stage = world.worker("shuffle").stage
    world.at(3, 1)
    workers.work()
    assert "shuffle" not in workers.idle, "the last epoch is not finalized"
    assert stage.idle_seconds() is None
    world.at(3, GRACE + 1)
    workers.work()
    workers.work_until_all_idle()
    assert sorted(world.published()) == [1, 2]
    condition, _ = workers.idle["shuffle"]
    assert condition.seconds == math.inf, "no clock wakes it"
    starts = workers.starts
    for _ in range(5):
        world.now += 500.0
        workers.work()
    assert workers.starts == starts
    # Late records are rejected, and then the worker is idle again.
    world.collect(2, [Sent(7, [1], True)])
    workers.work()
    workers.work_until_all_idle()
    assert workers.starts > starts
    assert sorted(world.published()) == [1, 2]
    world.shut()
