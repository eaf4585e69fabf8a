"""Lanes of devices that report for themselves: one decision, and every device exactly once."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from pipeline.actions import Append, carry_out
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_problems import JobError
from pipeline.jobs.noise_keys import KEY_BYTES, NoiseKey
from pipeline.recording.record_raw import RawLog
from pipeline.recording.recordings import LostRange
from pipeline.simulation import memory
from pipeline.simulation.memory import MemoryDriver
from pipeline.stages.decision_log import Decision, DecisionLog
from pipeline.stages.device_lanes import LaneClosings
from randomizers.counted_words import written_out
from randomizers.one_device import PROTOCOLS as DEVICE_PROTOCOLS
from randomizers.randomness import seeded_generator
from tests.support import cells
from tests.support.device_world import (
    COLLECTOR_KEY,
    DEPLOYMENT,
    GRACE,
    DeviceWorld,
    Sent,
    device_job,
)
from tests.support.replays import LiveRun, replayed
from tests.support.world import Accidents, Owner, PartitionedWorld, World
from topics.chunks import decode_chunk
from topics.loose_batches import report_lane
from topics.manifests import Fate, Manifest, decode_manifest
from topics.names import Role
from topics.records import DeadLetter, Drain, Reason

DEVICES = 30
EPOCHS = 2
PARTITIONS = 3

pytestmark = pytest.mark.usefixtures("device_cells")


@pytest.fixture
def device_cells(cells_protocol: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cells` is a protocol that devices run."""
    protocols = (*DEVICE_PROTOCOLS, cells.NAME)
    monkeypatch.setattr("pipeline.jobs.job_files.DEVICE_PROTOCOLS", protocols)


KEPT = pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost", marks=pytest.mark.verify),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.slow),
    ],
)


class Lanes(DeviceWorld, PartitionedWorld):
    """Devices, and a shuffle worker for every partition."""


def cells_job(lanes: int = 2, partitions: int = PARTITIONS, minimum: int = 2) -> DeployedJob:
    """Every device has a cell of its own."""
    return device_job(
        "cells",
        {"cells": DEVICES},
        EPOCHS,
        shuffle={"minimum": minimum, "grace": "PT40S"},
        topics={"partitions": partitions, "lanes": lanes},
    )


def own_cells(devices: Iterable[int], *, enrols: bool = True) -> list[Sent]:
    return [Sent(device, [device], enrols) for device in devices]


def in_lane(job: DeployedJob, epoch: int, lane: int, devices: int = DEVICES) -> list[int]:
    """Which devices are in a lane of an epoch."""
    world = DeviceWorld(job)
    rows = {device: world.row(epoch, Sent(device, [0])) for device in range(devices)}
    return [device for device, row in rows.items() if world.lane(epoch, row) == lane]


def story(world: Lanes, rng: random.Random, devices: Sequence[int] = range(DEVICES)) -> Lanes:
    """All of it arrives several times, in any order and batches; each grace passes."""
    for epoch in range(1, EPOCHS + 1):
        world.at(epoch, 50)
        copies = [each for each in own_cells(devices) for _ in range(rng.randrange(1, 4))]
        rng.shuffle(copies)
        while copies:
            size = rng.randrange(6, 20)
            world.collect(epoch, copies[:size])
            del copies[:size]
        world.settle()
    world.at(EPOCHS + 1, 1)
    while len(world.published()) < EPOCHS:
        world.settle()
        world.now += GRACE / 2
    # Whoever was killed in between writes again what is there already.
    world.settle()
    return world


def counted(world: World, epoch: int) -> list[int]:
    aggregator = world.job.aggregator()
    for payload in world.integers().values():
        aggregator.merge(world.job.aggregator_from_bytes(payload))
    counts: list[int] = aggregator.counts[epoch].tolist()  # type: ignore[attr-defined]
    return counts


def said(world: World) -> list[Manifest]:
    return [decode_manifest(value) for value in world.log.values(Role.MANIFESTS)]


def expect_all_through(world: World, why: object = "") -> None:
    for partition in range(world.job.partitions):
        for role in (Role.REPORTS, Role.SHUFFLED):
            end = world.log.end(role, partition)
            assert world.log.committed.get((role, partition), 0) == end, (role, partition, why)


def pass_grace(world: Lanes, epoch: int, names: Sequence[str] | None = None) -> None:
    for seconds in (1, GRACE + 3):
        world.at(epoch + 1, seconds)
        world.settle(names)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_each_device_counts_once_however_often_its_report_arrives(lanes: int) -> None:
    for seed in range(3):
        world = story(Lanes(cells_job(lanes)), random.Random(seed))
        for epoch in (1, 2):
            assert counted(world, epoch) == [1] * DEVICES
            manifest = world.manifests()[epoch]
            assert manifest.fate is Fate.RELEASED
            assert manifest.contributors == manifest.population == DEVICES
            assert world.published()[epoch].contributors == DEVICES
            closings = [each for each in said(world) if each.epoch == epoch][: lanes - 1]
            assert {each.instance for each in closings} == set(range(2, lanes + 1))
            sizes = [len(in_lane(world.job, epoch, lane)) for lane in range(2, lanes + 1)]
            closed = sorted(closings, key=lambda each: each.instance)
            assert [each.contributors for each in closed] == sizes
        expect_all_through(world)


def test_a_worker_that_owns_all_partitions_closes_and_writes_all_lanes() -> None:
    world = DeviceWorld(cells_job(3))
    world.at(1, 10)
    world.collect(1, own_cells(range(DEVICES)) * 2)
    world.settle()
    beat = world.worker("shuffle").stage.heartbeat()
    assert (beat["open_windows"], beat["open_lanes"]) == (1, 2)
    for seconds in (1, GRACE + 3, GRACE + 4, GRACE + 5):
        world.at(2, seconds)
        world.settle()
    assert counted(world, 1) == [1] * DEVICES
    beat = world.worker("shuffle").stage.heartbeat()
    assert (beat["open_windows"], beat["open_lanes"]) == (0, 0)
    counts = beat["counts"]
    assert isinstance(counts, dict)
    assert counts == {"reports": 2 * DEVICES, "unusable_reports": 0} | {
        "windows released": 1,
        "lanes": 2,
    }


@KEPT
def test_killed_after_every_single_action(keep: bool, stride: int) -> None:
    """Whoever dies, the owner of any lane, aggregator or publisher: all is exactly 1."""
    undisturbed = story(Lanes(cells_job()), random.Random(7))
    for strike in range(1, undisturbed.accidents.count + 1, stride):
        world = Lanes(cells_job(), accidents=Accidents(frozenset([strike]), keep))
        story(world, random.Random(7))
        assert world.published() == undisturbed.published(), f"killed after action {strike}"
        assert world.integers() == undisturbed.integers(), f"killed after action {strike}"
        expect_all_through(world, strike)


@KEPT
def test_killed_many_times_with_a_lane_that_is_empty(keep: bool, stride: int) -> None:
    """A lane without any record is closed, and written, all the same."""
    job = cells_job(2)
    devices = sorted({*in_lane(job, 1, 1)} & {*in_lane(job, 2, 2)})[:5]
    assert len(devices) >= 2
    undisturbed = story(Lanes(job), random.Random(3), devices)
    expected = [int(device in devices) for device in range(DEVICES)]
    assert counted(undisturbed, 1) == counted(undisturbed, 2) == expected
    empty = [each for each in said(undisturbed) if each.first_offset == each.cut_offset]
    assert {(each.epoch, each.instance) for each in empty} == {(1, 2), (2, 1)}
    for strike in range(1, undisturbed.accidents.count + 1, stride):
        strikes = frozenset([strike, strike + 3, strike + 11])
        world = story(Lanes(job, accidents=Accidents(strikes, keep)), random.Random(3), devices)
        assert world.integers() == undisturbed.integers(), f"killed after action {strike}"
        expect_all_through(world, strike)


@pytest.mark.parametrize(
    ("partition", "coarse"),
    [
        pytest.param(1, 1, id="of the deciding lane", marks=pytest.mark.verify),
        pytest.param(2, 1, id="of another", marks=pytest.mark.verify),
        pytest.param(1, 3, id="of the deciding lane, some"),
        pytest.param(2, 3, id="of another, some"),
    ],
)
def test_two_owners_of_a_partition_in_every_interleaving(
    partition: int, coarse: int, stride: int
) -> None:
    """The owner is paused anywhere, its successor gets anywhere, and the owner wakes up.

    What the successor finds beside is late, or in, as the first closing says.
    """
    job, stride = cells_job(), stride * coarse
    late = in_lane(job, 1, partition, 2 * DEVICES)[-1]
    late_cell = DEVICES - 1
    own = range(DEVICES - 1)
    pause, interleavings, both = 0, 0, set()
    while True:
        pause += stride
        progress = 0
        while True:
            world = Lanes(job)
            world.at(1, 50)
            world.collect(1, own_cells(own))
            world.at(2, GRACE + 4)
            nows = tuple(world.now - back for back in (GRACE + 3, GRACE + 2, 1, 0))
            owner = Owner(world, "shuffle", *nows)
            owner.step(pause)
            ended = owner.done
            owner.driver.fenced = True
            world.write_lane(1, partition, [world.row(1, Sent(late, [late_cell]))])
            successor = Owner(world, "shuffle", *nows)
            successor.step(progress)
            done = successor.done
            owner.step()
            successor.step()
            for _ in range(3):
                world.now += GRACE + 1
                world.settle()
            found = counted(world, 1)
            inside = world.manifests()[1].contributors == DEVICES
            assert found == [1] * (DEVICES - 1) + [int(inside)], (pause, progress)
            both.add(inside)
            expect_all_through(world, (pause, progress))
            interleavings += 1
            if done:
                break
            progress += stride
        if ended:
            break
    assert interleavings > 100 / stride**2
    assert stride > 1 or both == {True, False}


def waits_for(world: Lanes) -> list[str]:
    """What the owner of partition 1 says of the first lane of epoch 1."""
    windows: Any = world.worker("shuffle@1").stage.heartbeat()["windows"]
    (window,) = windows
    found: list[str] = window["waits_for"]
    return found


def test_the_first_lane_waits_for_all_others_and_says_so() -> None:
    world = Lanes(cells_job(3))
    world.at(1, 50)
    world.collect(1, own_cells(range(DEVICES)))
    # Lanes 1, 2 and 3 of epoch 1 lie in partitions 1, 2 and 0.
    pass_grace(world, 1, ["shuffle@1", "shuffle@2"])
    assert [each.instance for each in said(world)] == [2]

    assert waits_for(world) == ["lane 2", "lane 3"]
    world.settle(["shuffle@1"])
    assert waits_for(world) == ["lane 3"]
    # Its owner comes long after, and finds what lay there.
    for seconds in (60.0, GRACE + 1):
        world.now += seconds
        world.settle(["shuffle@0", "shuffle@1"])
    assert [each.instance for each in said(world) if each.epoch == 1] == [2, 3, 1]
    world.settle()
    assert counted(world, 1) == [1] * DEVICES


@pytest.mark.parametrize("minimum", [DEVICES, DEVICES + 1])
def test_the_minimum_is_of_all_lanes_together(
    minimum: int, scratch_files: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no lane has as many; what is withheld is not written of any lane, nor held."""
    monkeypatch.setattr("pipeline.stages.tagged_contents._MEMORY_LIMIT", 1)
    world = story(Lanes(cells_job(3, minimum=minimum)), random.Random(1))
    enough = minimum <= DEVICES
    fates = {each.epoch: each.fate for each in said(world) if each.instance == 1}
    assert set(fates.values()) == {Fate.RELEASED if enough else Fate.TOO_SMALL}
    chunks = [v for p in range(PARTITIONS) for v in world.log.values(Role.SHUFFLED, p)]
    assert len(chunks) == (6 if enough else 0)
    expect_all_through(world)
    assert len(scratch_files) >= 6
    assert all(each.closed for each in scratch_files)


def test_epochs_without_a_report_in_any_lane_are_empty() -> None:
    world = Lanes(cells_job(3))
    world.at(EPOCHS + 1, GRACE + 3)
    for _ in range(2):
        world.settle()
        world.now += GRACE + 3
    world.settle()
    assert {e: m.fate for e, m in world.manifests().items()} == dict.fromkeys((1, 2), Fate.EMPTY)
    assert sorted(world.published()) == [1, 2]


def test_a_lane_closes_when_all_collectors_have_said_there_that_they_take_no_more() -> None:
    world = Lanes(cells_job())
    world.at(1, 60)
    for collector in (1, 2):
        world.beat(collector)
    world.collect(1, own_cells(range(DEVICES)))
    world.at(2, 1)
    for collector in (1, 2):
        world.beat(collector)
    world.watermark(1, 1)
    world.settle()
    assert waits_for(world) == ["collector 02020202", "lane 2"]
    world.watermark(1, 2, lanes=[1])
    world.settle()
    assert not said(world), "lane 2 is waited for"
    assert waits_for(world) == ["lane 2"]
    world.watermark(1, 2, lanes=[2])
    world.settle()
    assert [each.instance for each in said(world)] == [2, 1]
    assert counted(world, 1) == [1] * DEVICES


def test_what_comes_into_a_closed_lane_is_late_and_counted() -> None:
    job = cells_job()
    late = {lane: in_lane(job, 1, lane)[0] for lane in (1, 2)}
    world = Lanes(job)
    world.at(1, 50)
    world.collect(1, own_cells(set(range(DEVICES)) - {*late.values()}))
    pass_grace(world, 1, ["shuffle@2"])
    assert [each.instance for each in said(world)] == [2]
    # Lane 2 is closed, and the first one is not.
    world.collect(1, own_cells(late.values()))
    world.settle(["shuffle@2"])
    for _ in range(2):
        world.now += GRACE
        world.settle(["shuffle@1"])
    world.settle()
    assert counted(world, 1) == [int(device != late[2]) for device in range(DEVICES)]
    counts = [world.worker(f"shuffle@{n}").stage.heartbeat()["counts"] for n in (1, 2)]
    assert [each.get("late_reports", 0) for each in counts] == [0, 1]  # type: ignore[attr-defined]
    expect_all_through(world)


@pytest.mark.parametrize("closed_by", ["it", "another"])
def test_the_owner_of_a_closed_lane_is_followed_before_and_after_the_decision(
    closed_by: str,
) -> None:
    """Its successor writes the lane that the closing says, from the topic; nothing is deleted."""
    for killed_after in ("closing", "decision"):
        world = Lanes(cells_job())
        world.at(1, 50)
        world.collect(1, own_cells(range(DEVICES)))
        pass_grace(world, 1, ["shuffle@2"])
        assert [each.instance for each in said(world)] == [2]
        assert world.log.start(Role.REPORTS, 2) == 0
        if killed_after == "decision":
            for _ in range(2):
                world.now += GRACE
                world.settle(["shuffle@1", "aggregate"])
            assert 1 in world.manifests()
            assert not world.integers()
        if closed_by == "another":
            world.kill("shuffle@2")
        # What comes now is no part of it.
        world.write_lane(1, 2, [world.row(1, Sent(in_lane(world.job, 1, 2)[0] + 1000, [3]))])
        for _ in range(2):
            world.now += GRACE
            world.settle()
        assert counted(world, 1) == [1] * DEVICES
        expect_all_through(world)


@pytest.mark.parametrize("killed", ["nobody", "and started again", "and followed by another"])
def test_a_paused_owner_closes_an_empty_lane_below_the_floor_of_its_successor(killed: str) -> None:
    """No offset says of a lane without records whether it is written: it is, again if need be.

    Also by the owner of another partition, which has read of it when it was none of its business.
    """
    job = cells_job()
    devices = in_lane(job, 1, 1)[:5]
    paused, world = Lanes(job), Lanes(job)
    for each in (paused, world):
        each.at(1, 50)
        each.collect(1, own_cells(devices))
    pass_grace(paused, 1, ["shuffle@2"])
    (closing,) = paused.log.values(Role.MANIFESTS)
    assert (said(paused)[0].epoch, said(paused)[0].cut_offset) == (1, 0)
    # Its successor is through with all that lies in the partition before that is heard of.
    world.at(2, 50)
    world.collect(2, own_cells(range(DEVICES)))
    world.at(3, 1)
    world.beat(1)
    world.watermark(2, 1)
    world.settle()
    assert [(each.epoch, each.instance) for each in said(world)] == [(2, 2), (2, 1)]
    assert world.log.committed[Role.REPORTS, 2] == world.log.end(Role.REPORTS, 2) > 0
    world.log.append(Append(Role.MANIFESTS, 0, closing))
    names = [f"{stage}@{number}" for stage in ("shuffle", "aggregate") for number in range(3)]
    if killed != "nobody":
        for _ in range(2):
            world.now += GRACE + 1
            world.settle(["shuffle@1"])
        assert 1 in world.manifests()
        world.kill("shuffle@2")
    if killed == "and followed by another":
        names.remove("shuffle@2")
        another = world.worker("shuffle@0")
        world.settle(["shuffle@0"])
        another.run(another.assign(2, world.now))
    for _ in range(2):
        world.now += GRACE + 1
        world.settle([*names, "publish"])
    assert counted(world, 1) == [int(device in devices) for device in range(DEVICES)]
    assert counted(world, 2) == [1] * DEVICES


def test_who_cannot_know_that_an_empty_lane_is_written_does_not_rest() -> None:
    """Nothing that is committed says so; whoever has written it rests."""
    job = cells_job()
    devices = in_lane(job, 1, 1)[:5]
    world = Lanes(job)
    for epoch in (1, 2):
        world.at(epoch, 50)
        world.collect(epoch, own_cells(devices if epoch == 1 else range(DEVICES)))
    world.at(3, 1)
    while len(world.published()) < 2:
        world.settle()
        world.now += GRACE
    world.settle()
    expect_all_through(world)
    rests = [world.worker(f"shuffle@{number}").stage.rests() for number in range(PARTITIONS)]
    # Lane 2 of epoch 1 lies in partition 2.
    assert rests == [None, None, math.inf]
    full = story(Lanes(job), random.Random(1))
    rests = [full.worker(f"shuffle@{number}").stage.rests() for number in range(PARTITIONS)]
    assert rests == [math.inf] * PARTITIONS


def test_raw_reports_that_are_gone_are_missed_in_the_lanes_of_their_windows_alone() -> None:
    """Closings say where a lane was, though they come before the decision."""
    world = story(Lanes(cells_job()), random.Random(2))
    first, second = (world.manifests()[epoch] for epoch in (1, 2))
    closed = {each.epoch: each for each in said(world) if each.instance == 2}
    place = closed[1]
    assert place.first_offset < second.first_offset
    for start, lacks in ((place.first_offset, [Role.REPORTS]), (place.cut_offset, [])):
        lost = [LostRange(2, start, start + 1, Role.REPORTS.value)]
        raw = RawLog(world.job, 1, {}, lost)
        carry_out(raw.find_end(), MemoryDriver(world.log).carry_out)
        assert raw.lacking(first) == lacks
        if start < second.first_offset:
            assert raw.lacking(second) == []


def drain(world: World) -> None:
    for partition in range(world.job.partitions):
        record = Drain(DEPLOYMENT, partition, world.log.end(Role.REPORTS, partition))
        world.log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))


def test_a_drain_decides_what_has_begun_in_any_other_lane() -> None:
    """Before its time; also the lanes of it in which nothing is."""
    for lane in (1, 2, 3):
        job = cells_job(3)
        devices = [*in_lane(job, 1, lane)[:3], *in_lane(job, 1, 2)[:2]]
        world = Lanes(job)
        world.at(1, 50)
        world.collect(1, own_cells(devices))
        world.settle()
        assert not said(world)
        drain(world)
        for _ in range(3):
            world.settle()
        assert world.manifests()[1].contributors == len(set(devices))
        assert counted(world, 1) == [int(device in devices) for device in range(DEVICES)]
        expect_all_through(world)
        assert 2 not in world.manifests()


def test_a_drain_of_long_ago_closes_no_lane_before_all_of_it_is_read() -> None:
    """Once another lane is closed, as of every epoch."""
    world = Lanes(cells_job())
    drain(world)
    world.at(1, 50)
    world.collect(1, own_cells(range(DEVICES)))
    pass_grace(world, 1, ["shuffle@2"])
    assert [each.instance for each in said(world)] == [2]
    world.at(2, 1)
    world.settle(["shuffle@1"])
    assert [each.instance for each in said(world)] == [2]
    world.now += GRACE + 1
    world.settle()
    assert counted(world, 1) == [1] * DEVICES


def test_a_lane_that_is_drained_elsewhere_is_read_to_its_end_before_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However slow its worker is: what lies in the log by then is not late."""
    job = cells_job(3)
    others = in_lane(job, 1, 3)
    world = Lanes(job)
    world.at(1, 50)
    world.collect(1, own_cells(in_lane(job, 1, 2)))
    drain(world)
    world.settle([f"shuffle@{job.partition_of(1, 2)}"])
    assert [each.instance for each in said(world)] == [2]
    for device in others:
        world.collect(1, own_cells([device]))
    worker = world.worker(f"shuffle@{job.partition_of(1, 3)}")
    with monkeypatch.context() as patch:
        # It has read one record, and looks at its windows.
        patch.setattr(memory, "SLICE_BYTES", 1)
        worker.run(worker.poll(world.now))
        worker.run(worker.stage.tick(world.now))
    for _ in range(3):
        world.settle()
    held = {*others, *in_lane(job, 1, 2)}
    assert len(others) > 1
    assert counted(world, 1) == [int(device in held) for device in range(DEVICES)]


KEY = NoiseKey(bytes(range(KEY_BYTES)))
ITEMS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("protocol", "parameters"),
    [
        ("future_rand", {"epsilon": 4, "changes": 2}),
        ("hadamard_stream", {"epsilon": 2, "changes": 2, "domain": ITEMS}),
        ("single_message", {"epsilon": 2, "delta": 1e-6, "domain": ITEMS}),
        ("shuffled_counts", {"epsilon": 2, "delta": 1e-6, "domain": ITEMS, "dummies": "shuffle"}),
        ("balls_into_bins", {"epsilon": 2, "delta": 1e-6, "domain": ITEMS, "dummies": "shuffle"}),
    ],
)
def test_what_is_published_is_what_is_published_without_lanes(
    protocol: str, parameters: dict[str, Any]
) -> None:
    """Number for number: constants, integers, and what is estimated of them."""
    published, integers = [], []
    for lanes in (1, 3):
        job = device_job(
            protocol,
            parameters,
            4,
            shuffle={"minimum": 1000, "grace": "PT40S"},
            topics={"partitions": 3, "lanes": lanes},
        )
        job = job.model_copy(update={"noise_key": KEY.digest})
        assert job.content_form.slots == 1
        world = Lanes(job, noise_key=KEY)
        population, rng = job.randomizer(), seeded_generator(5)
        population.enrol(1_200, rng)
        shape = (1_200, *job.domain.shape)
        values = np.zeros(shape, np.int64)
        values.reshape(1_200, -1)[::3, 0] = 1
        for epoch in (1, 2):
            world.at(epoch, 10)
            drawn = written_out(population.report(epoch, values, None, rng))
            words = [[word] for word in drawn[:, 0].tolist()]
            # Which of them is whose is of no matter; who has none says so.
            words += [[]] * (1_200 - len(words))
            sent = [Sent(number, word, epoch == 1) for number, word in enumerate(words)]
            for at in range(0, len(sent), 500):
                world.collect(epoch, sent[at : at + 500])
        world.at(3, 1)
        while len(world.published()) < 2:
            world.settle()
            world.now += GRACE / 2
        assert {each.contributors for each in world.manifests().values()} == {1_200}
        chunks = [v for p in range(3) for v in world.log.values(Role.SHUFFLED, p)]
        assert {decode_chunk(value).instance for value in chunks} == set(range(1, lanes + 1))
        integers.append(world.integers())
        records = [world.published()[epoch] for epoch in (1, 2)]
        published.append([each.to_json()["estimate"] for each in records])
    assert integers[0] == integers[1]
    assert [None not in each for each in published] == [True, True]
    assert published[0] == published[1]


def test_a_lane_is_a_part_of_what_is_published_and_of_a_replay() -> None:
    world = story(Lanes(cells_job(3)), random.Random(2))
    live = LiveRun(world.job, world.log)
    job, log, results = replayed(live.source)
    assert job.window_parts == 1
    assert results.integers == live.results.integers
    assert len(log.values(Role.SHUFFLED, 1)) == 1


def test_lanes_are_drawn_for_each_epoch_of_tags_alone() -> None:
    """Each device is in one lane of an epoch, and in others of other epochs and deployments."""
    tags = [number.to_bytes(8, "little") for number in range(3_000)]
    drawn = [
        [report_lane(key, deployment, epoch, tag, 3) for tag in tags]
        for key, deployment, epoch in (
            (COLLECTOR_KEY, DEPLOYMENT, 1),
            (COLLECTOR_KEY, DEPLOYMENT, 2),
            (COLLECTOR_KEY, bytes(16), 1),
            (bytes([1]) * 32, DEPLOYMENT, 1),
        )
    ]
    for lanes in drawn:
        assert set(lanes) == {1, 2, 3}
        assert max(abs(count - 1_000) for count in Counter(lanes).values()) < 8 * 26
    for one, other in product(drawn, drawn):
        same = sum(a == b for a, b in zip(one, other, strict=True))
        assert one is other or abs(same - 1_000) < 8 * 26


def test_what_belongs_to_no_lane_is_refused() -> None:
    world = Lanes(cells_job(2))
    world.at(1, 50)
    world.collect(1, own_cells(range(DEVICES)))
    for value in (*world.log.values(Role.REPORTS, 2), b"nothing"):
        world.log.append(Append(Role.REPORTS, 0, value))
    pass_grace(world, 1)
    world.now += GRACE
    world.settle()
    end = world.log.end(Role.DEAD_LETTERS, 0)
    letters = [
        DeadLetter.from_record(record.value, record.headers)
        for record in world.log.read(Role.DEAD_LETTERS, 0, 0, end).records
    ]
    assert [(each.partition, each.reason) for each in letters] == [
        (0, Reason.EPOCH),
        (0, Reason.UNREADABLE),
    ]
    assert counted(world, 1) == [1] * DEVICES


@pytest.mark.parametrize(
    ("protocol", "parameters", "message"),
    [
        ("shuffled_counts", {"epsilon": 2, "delta": 1e-6}, "where only the devices of that lane"),
        ("count_min", {"epsilon": 2, "delta": 1e-6, "domain": ITEMS}, "by parameters.dummies"),
    ],
)
def test_devices_of_several_messages_that_hide_in_the_shuffle_have_no_lanes(
    protocol: str, parameters: dict[str, Any], message: str
) -> None:
    """All messages of one would lie in one lane, among those of too few devices."""
    topics = {"partitions": 2, "lanes": 2}
    with pytest.raises(JobError, match=message):
        device_job(protocol, parameters, shuffle={"minimum": 1000, "grace": "40 s"}, topics=topics)


def test_lanes_are_of_open_reports() -> None:
    with pytest.raises(JobError, match=r"leave out devices\.seal, or"):
        device_job(
            topics={"partitions": 2, "lanes": 2},
            devices={"seal": ["1" * 64]},
        )


def test_a_lane_is_closed_by_its_first_closing_and_forgotten_with_its_epoch() -> None:
    world = story(Lanes(cells_job(3)), random.Random(4))
    shown: list[tuple[int, int, int]] = []
    closings = LaneClosings(
        world.job,
        lambda each: shown.append((each.manifest.epoch, each.manifest.instance, each.offset)),
    )

    def decide(decision: Decision) -> None:
        closings.take(decision.manifest.epoch)

    decisions = DecisionLog(world.job, decide)
    records = world.log.read(Role.MANIFESTS, 0, 0, world.log.end(Role.MANIFESTS, 0)).records
    for record in (*records, *records):
        closings.apply(record)
        decisions.apply(record)
    assert len(shown) == len({each[:2] for each in shown}) == 4
    assert closings.begun == ()
    assert not closings.all_of(1)
