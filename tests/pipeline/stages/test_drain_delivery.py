"""Test that a drain decides open windows exactly once, even if workers are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpstream.pipeline.actions import Append, LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.producer_registry import ProducerRegistry
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from dpstream.topics.records import Drain
from tests.support import cells
from tests.support.killed_worlds import killed_worlds
from tests.support.world import Accidents, World, interleavings, own_cells

pytestmark = pytest.mark.usefixtures("cells_protocol")

DEPLOYMENT = bytes(range(16))
PARTITIONS = 2


@pytest.fixture
def job() -> DeployedJob:
    """Deploy a job with a grace period of an hour, which never ends in these tests."""
    values = {
        "name": "drained",
        "protocol": cells.NAME,
        "parameters": {"cells": 30},
        "epochs": {"count": 8},
        "shuffle": {"minimum": 10, "grace": "1h", "producers": 2},
        "topics": {"partitions": PARTITIONS},
    }
    return deploy_job(make_job(values), deployment=DEPLOYMENT, deployed_at=0)


def drain(world: World, partitions: int = PARTITIONS) -> None:
    for partition in range(partitions):
        record = Drain(DEPLOYMENT, partition, world.log.end(Role.REPORTS, partition))
        world.log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))


def contributors(world: World) -> dict[int, int]:
    return {epoch: record.contributors for epoch, record in sorted(world.published().items())}


def registered(world: World) -> None:
    for name in world.values:
        world.surviving(name, lambda name=name: world.producer(name))  # type: ignore[misc]


def drained_run(world: World) -> World:
    """Drain the job after the south has sent epoch 1, and the north epochs 1 to 3."""
    registered(world)
    for name, epoch in (("north", 1), ("south", 1), ("north", 2), ("north", 3)):
        world.close_epoch(name, epoch)
    world.settle()
    drain(world)
    world.settle()
    world.settle()
    for name, epoch in (("south", 2), ("north", 4), ("south", 3), ("south", 4)):
        world.close_epoch(name, epoch)
    return world.finish(rounds=2)


def test_drain_closes_open_windows_but_not_later_windows(job: DeployedJob, folder: Path) -> None:
    world = drained_run(World(job, folder, own_cells(30, 8)))
    assert contributors(world) == {1: 30, 2: 15, 3: 15, 4: 30}
    assert {record.window_status for record in world.published().values()} == {
        WindowStatus.RELEASED
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost"),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_when_killed_after_any_action(
    job: DeployedJob, folder: Path, keep: bool, stride: int
) -> None:
    def run(place: Path, accidents: Accidents) -> World:
        return drained_run(World(job, place, own_cells(30, 8), accidents))

    for world in killed_worlds(run, folder, keep=keep, stride=stride):
        assert world.accidents.count > 100


def test_drained_window_includes_records_written_before_the_drain(
    job: DeployedJob, folder: Path
) -> None:
    world = World(job, folder, own_cells(30, 8))
    registered(world)
    for name, epoch in (("north", 1), ("north", 3), ("south", 1)):
        world.close_epoch(name, epoch)
    drain(world)
    worker = world.worker("shuffle")
    for _ in range(3):
        worker.run(worker.stage.tick(0.0))
        assert not world.manifests()
        worker.run(worker.poll())
    world.settle()
    assert world.manifests()[1].contributors == 30
    assert world.manifests()[3].contributors == 15
    world.shut()


def test_drain_ignores_windows_started_after_it(job: DeployedJob, folder: Path) -> None:
    world = World(job, folder, own_cells(30, 8))
    registered(world)
    for _ in range(2):
        drain(world)
        world.settle()
    world.close_epoch("north", 1)
    for world.now in (0.0, 3599.0):
        world.settle()
        assert not world.manifests()
    world.close_epoch("south", 1)
    world.settle()
    assert contributors(world) == {1: 30}
    world.shut()


def test_drain_also_closes_earlier_epochs(job: DeployedJob, folder: Path) -> None:
    """Epoch 2 has no record, or its first record follows the drain: epoch 3 is published.

    After the drain, missing epochs delay later ones as usual.
    """
    for late in (False, True):
        world = World(job, folder / f"{late}", own_cells(30, 8))
        registered(world)
        world.close_all(1)
        world.close_epoch("north", 3)
        drain(world)
        if late:
            world.close_epoch("south", 2)
        for _ in range(3):
            world.settle()
        assert contributors(world) == {1: 30, 2: 15 if late else 0, 3: 15}
        world.close_all(5)
        for _ in range(3):
            world.settle()
        assert sorted(world.manifests()) == [1, 2, 3, 5]
        assert sorted(world.published()) == [1, 2, 3]
        world.shut()


def test_drain_suppresses_windows_below_the_minimum(job: DeployedJob, folder: Path) -> None:
    few = own_cells(30, 8)
    few["north"][1] = {"north0": 0}
    world = World(job, folder, few)
    registered(world)
    world.close_epoch("north", 1)
    drain(world)
    world.settle()
    assert world.published()[1].window_status is WindowStatus.SUPPRESSED
    world.close_epoch("south", 1)
    world.settle()
    assert contributors(world) == {1: 1}
    assert not world.log.values(Role.SHUFFLED, 1)
    world.shut()


def test_drain_of_one_partition_closes_only_its_epochs(job: DeployedJob, folder: Path) -> None:
    """The drain command is killed between two partitions, and is then repeated."""
    world = World(job, folder, own_cells(30, 8))
    registered(world)
    for epoch in (1, 2):
        world.close_epoch("north", epoch)
    drain(world, partitions=1)
    world.settle()
    assert sorted(world.manifests()) == [2]
    drain(world)
    world.settle()
    assert sorted(world.manifests()) == [1, 2]
    world.shut()


@pytest.mark.verify
def test_two_owners_of_a_partition_decide_once_in_any_order(job: DeployedJob, folder: Path) -> None:
    memberships: set[tuple[bool, ...]] = set()

    def begin(place: Path) -> World:
        world = World(job, place, own_cells(30, 8))
        registered(world)
        world.close_epoch("north", 1)
        drain(world)
        return world

    pauses: set[int] = set()
    for pause, world in interleavings(begin, folder, times=(0.0,)):
        pauses.add(pause)
        manifest = world.manifests()[1]
        memberships.add(tuple(manifest.producers))
        assert contributors(world) == {1: 15 * sum(manifest.producers)}
    assert len(pauses) > 5
    assert memberships == {(True, False), (True, True)}


def test_only_the_highest_drain_offset_of_a_partition_takes_effect(job: DeployedJob) -> None:
    registry = ProducerRegistry(job)
    for record in (
        Drain(DEPLOYMENT, 0, 7),
        Drain(DEPLOYMENT, 0, 5),
        Drain(bytes(16), 1, 9),
        Drain(DEPLOYMENT, 1, 0),
        Drain(DEPLOYMENT, PARTITIONS, 9),
    ):
        registry.apply(LogRecord(0, record.to_bytes()))
    assert registry.drains == {0: 7, 1: 0}
    assert not list(registry)
