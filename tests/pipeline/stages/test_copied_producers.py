"""Test two producers with copies of one folder: in any order, each device counts once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus, decode_manifest, encode_manifest
from dpstream.topics.names import Role
from tests.support import cells
from tests.support.new_jobs import new_job
from tests.support.world import World

# Enough devices for more than one batch.
CELLS = 40_000


def job() -> DeployedJob:
    return deploy_job(
        new_job("copied", cells.NAME, {"cells": CELLS}, count=1, minimum=1, partitions=1),
        deployed_at=0,
        deployment=bytes(16),
    )


def copies(deployed: DeployedJob, folder: Path) -> MemoryLog:
    log = MemoryLog()
    first = Producer(deployed, folder / "a", name="gateway", transport=MemoryDriver(log))
    first.enroll([f"user {number}" for number in range(CELLS)])
    first.shut()
    shutil.copytree(folder / "a", folder / "b")
    return log


def sent_by(
    deployed: DeployedJob, folder: Path, cells_of_users: Mapping[str, int], newcomers: int = 0
) -> list[bytes]:
    own = MemoryLog()
    with Producer(deployed, folder, name="gateway", transport=MemoryDriver(own)) as producer:
        producer.enroll([f"newcomer {number}" for number in range(newcomers)])
        producer.report(1, cells_of_users)
        producer.close(1)
    return own.values(Role.REPORTS)


def every_order(one: Sequence[bytes], other: Sequence[bytes]) -> Iterator[list[bytes]]:
    total = len(one) + len(other)
    for places in combinations(range(total), len(one)):
        mine, theirs = iter(one), iter(other)
        yield [next(mine if place in places else theirs) for place in range(total)]


def test_interleaved_records_of_a_producer_and_its_copy_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    deployed = job()
    registered = copies(deployed, tmp_path)
    values = {f"user {number}": number for number in range(CELLS)}
    one, other = (sent_by(deployed, tmp_path / name, values) for name in "ab")
    assert len(one) == len(other) >= 3, "two batches and a punctuation"
    for order in every_order(one, other):
        cluster = SimulatedCluster(deployed, lambda purpose, number: seeded_generator(number))
        driver = MemoryDriver(cluster.log)
        for value in registered.values(Role.PRODUCERS):
            driver.carry_out(Append(Role.PRODUCERS, 0, value))
        for value in order:
            # The stage reads each record separately, and decides on those read so far.
            driver.carry_out(Append(Role.REPORTS, 0, value))
            driver.crash(keep=True)
            cluster.settle()
        (manifest,) = map(decode_manifest, cluster.log.values(Role.MANIFESTS))
        assert (manifest.window_status, manifest.contributors) == (WindowStatus.RELEASED, CELLS)
        (record,) = cluster.new_estimates()
        assert record.headline is not None
        assert (record.headline.ci95_low, record.headline.ci95_high) == (1.0, 1.0), order
        assert not cluster.log.values(Role.DEAD_LETTERS)


class Copy(NamedTuple):
    cell: int
    present: int
    newcomers: int


@pytest.mark.parametrize(
    "other",
    [Copy(2, 3, 2), Copy(2, CELLS - 2, 1), Copy(2, 0, 3)],
    ids=["fewer batches", "same number of batches", "no users"],
)
def test_only_one_of_two_producer_copies_with_different_inputs_is_counted(
    other: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)
    deployed = job()
    registered = copies(deployed, tmp_path)
    sent, expected = [], {}
    for name, copy in (("a", Copy(1, CELLS, 0)), ("b", other)):
        values = {f"user {number}": copy.cell for number in range(copy.present)}
        sent.append(sent_by(deployed, tmp_path / name, values, copy.newcomers))
        counts = {copy.cell: copy.present} if copy.present else {}
        expected[copy.present, CELLS + copy.newcomers] = counts
    for order in every_order(*sent):
        # The stage reads each record separately, and decides on those read so far.
        world = _world(deployed, registered)
        for value in order:
            world.log.append(Append(Role.REPORTS, 0, value))
            world.settle()
        (manifest,) = world.manifests().values()
        # A successor worker finds the decision, and reads the window again.
        successor = _world(deployed, registered)
        for value in order:
            successor.log.append(Append(Role.REPORTS, 0, value))
        successor.log.append(Append(Role.MANIFESTS, 0, encode_manifest(manifest)))
        successor.settle()
        for each in (world, successor):
            assert _counts(each) == expected[manifest.contributors, manifest.population], order
            assert not each.log.values(Role.DEAD_LETTERS)


def _world(deployed: DeployedJob, registered: MemoryLog) -> World:
    world = World(deployed, Path(), {})
    for value in registered.values(Role.PRODUCERS):
        world.log.append(Append(Role.PRODUCERS, 0, value))
    return world


def _counts(world: World) -> dict[int, int]:
    counts = {}
    for state in world.integers().values():
        aggregator = world.job.aggregator_from_bytes(state)
        assert isinstance(aggregator, cells.CellsAggregator)
        counts = dict(enumerate(aggregator.counts[1].tolist()))
    return {cell: count for cell, count in counts.items() if count}
