"""Test parallel shufflers: one decision, and every partial window exactly once."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import Action, Append, Flush, carry_out
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.job_range import EPOCHS_AHEAD
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_punctuation, encode_punctuation
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason
from tests.support.killed_worlds import all_is_read, cell_counts, killed_worlds, run_with_late_south
from tests.support.new_jobs import hidden_sizes, new_job
from tests.support.world import Accidents, Owner, World, own_cells

DEPLOYMENT = bytes(range(16))
CELLS = 30
EPOCHS = 2


pytestmark = pytest.mark.usefixtures("cells_protocol")


def deployed(instances: int = 2, epochs: int = EPOCHS, **shuffle: Any) -> DeployedJob:
    job = new_job(
        "instances",
        "cells",
        {"cells": CELLS},
        epochs={"count": epochs, "start": "2023-01-01", "length": "PT1H"},
        shuffle={"minimum": 10, "grace": "60 s", "producers": 2, "instances": instances, **shuffle},
        topics={"partitions": 2},
    )
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


def new_world(job: DeployedJob, folder: Path, accidents: Accidents | None = None) -> World:
    return World(job, folder, own_cells(CELLS, EPOCHS), accidents or Accidents())


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize(
    ("order", "keep"),
    [
        pytest.param("sorted", False, id="sorted, unflushed lost", marks=pytest.mark.slow),
        pytest.param("random", True, id="random, unflushed kept", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_when_killed_after_any_action(
    folder: Path, order: str, keep: bool, stride: int
) -> None:
    job = deployed(order=order)

    def run(place: Path, accidents: Accidents) -> World:
        return new_world(job, place, accidents).run(range(1, EPOCHS + 1), rounds=2)

    for world in killed_worlds(run, folder, keep=keep, stride=stride):
        assert world.accidents.count > 150
        assert len(world.log.values(Role.ESTIMATES)) == EPOCHS
        assert all_is_read(world, Role.REPORTS, Role.REPORTS_2, Role.SHUFFLED)


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost", marks=pytest.mark.verify),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.slow),
    ],
)
def test_late_producer_is_excluded_from_all_partial_windows(
    folder: Path, keep: bool, stride: int
) -> None:
    """A shuffler might have all records of a late producer before it reads the decision."""
    job = deployed()

    def run(place: Path, accidents: Accidents) -> World:
        # The other shuffler has not seen the decision when the batches arrive.
        return run_with_late_south(new_world(job, place, accidents), ["shuffle"])

    for world in killed_worlds(run, folder, keep=keep, stride=stride):
        assert sorted(world.published()) == [1, 2]
        assert world.published()[1].contributors == 15
        assert cell_counts(world, 1).tolist() == [1] * 15 + [0] * 15
        assert cell_counts(world, 2).tolist() == [1] * 30


def test_window_is_published_after_all_its_partial_windows(folder: Path) -> None:
    world = new_world(deployed(3), folder)
    world.close_all(1)
    world.settle(["shuffle", "aggregate", "publish", "instance-3", "aggregate", "publish"])
    assert world.log.values(Role.SHUFFLED, 1)
    assert not world.log.values(Role.PARTIALS)
    # Available partial windows wait for the others, even with another aggregator.
    world.kill("aggregate")
    world.settle(["aggregate", "publish"])
    assert not world.published()
    world.settle(["instance-2", "aggregate", "publish"])
    assert cell_counts(world, 1).tolist() == [1] * CELLS
    assert world.log.committed[Role.SHUFFLED, 1] == world.log.end(Role.SHUFFLED, 1)
    world.shut()


def test_lagging_shuffler_catches_up_before_writing_its_manifest(
    folder: Path,
) -> None:
    world = new_world(deployed(), folder)
    world.close_all(1)
    world.settle(["shuffle"])
    worker = world.worker("instance-2")
    worker.run(worker.stage.tick(0.0))
    worker.run(worker.stage.tick(1.0))
    assert len(world.log.values(Role.MANIFESTS)) == 1
    world.settle()
    assert cell_counts(world, 1).tolist() == [1] * CELLS
    world.shut()


def test_producer_sends_to_the_first_shuffler_last(
    folder: Path,
) -> None:
    job = deployed(3)
    world = new_world(job, folder)
    producer = world.producer("north")
    producer.enroll(list(world.values["north"][1]))
    for epoch in (1, 2):
        producer.report(epoch, world.values["north"][epoch])
        # The producer draws and stores reports, and dies before it sends them.
        next(producer.close_steps(epoch))
    acknowledged: set[tuple[Role, int]] = set()
    waiting: set[tuple[Role, int]] = set()
    epochs: set[int] = set()

    def note(action: Action) -> None:
        if isinstance(action, Flush):
            acknowledged.update(waiting)
            waiting.clear()
        elif isinstance(action, Append) and action.role in job.route.reports:
            if kind_of(action.value) is RecordType.PUNCTUATION:
                waiting.add((action.role, action.partition))
            if action.role is Role.REPORTS:
                epochs.add(action.partition)
                assert {(role, action.partition) for role in job.route.reports[1:]} <= acknowledged

    carry_out(producer.resume(), note)
    assert epochs == {0, 1}
    world.shut()


@pytest.mark.verify
def test_two_owners_of_a_partial_window_always_agree(folder: Path) -> None:
    pause = interleavings = 0
    while True:
        pause += 1
        progress = 0
        while True:
            world = new_world(deployed(), folder / f"{pause}-{progress}")
            world.close_all(1)
            world.settle(["shuffle"])
            owner = Owner(world, "instance-2", 0.0, 61.0)
            owner.step(pause)
            ended = owner.done
            owner.driver.fenced = True
            successor = Owner(world, "instance-2", 62.0, 63.0)
            successor.step(progress)
            done = successor.done
            owner.step()
            successor.step()
            world.settle(["aggregate", "publish"])
            assert cell_counts(world, 1).tolist() == [1] * CELLS, (pause, progress)
            world.shut()
            interleavings += 1
            if done:
                break
            progress += 1
        if ended:
            break
    assert interleavings > 100


def test_copied_producers_contribute_one_draw(tmp_path: Path) -> None:
    job = deployed(producers=1)
    log = MemoryLog()
    values = {f"user{cell}": cell for cell in range(CELLS)}
    with Producer(job, tmp_path / "a", name="gateway", transport=MemoryDriver(log)) as first:
        first.enroll(list(values))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    sent: list[dict[Role, list[bytes]]] = []
    for name in "ab":
        own = MemoryLog()
        with Producer(job, tmp_path / name, name="gateway", transport=MemoryDriver(own)) as copy:
            copy.report(1, values)
            copy.close(1)
        sent.append({role: own.values(role, 1) for role in job.route.reports})
    for first_orders in product((0, 1), repeat=2):
        world = new_world(job, tmp_path / "world")
        for value in log.values(Role.PRODUCERS):
            world.log.append(Append(Role.PRODUCERS, 0, value))
        for role, begins in reversed(list(zip(job.route.reports, first_orders, strict=True))):
            for each in (sent[begins], sent[1 - begins]):
                for value in each[role]:
                    world.log.append(Append(role, 1, value))
        world.settle()
        assert cell_counts(world, 1).tolist() == [1] * CELLS, first_orders
        world.shut()


def test_record_that_reaches_one_of_the_shufflers_too_late_is_never_counted(
    folder: Path,
) -> None:
    """One shuffler receives the last record too late: no window waits for it."""
    job = deployed(producers=1)
    world = new_world(job, folder)
    world.close_epoch("north", 1)
    punctuation = [decode_punctuation(world.log.values(Role.REPORTS_2, 1)[-1])]
    records = world.log.values(Role.REPORTS_2, 1)
    assert kind_of(records[-1]) is RecordType.PUNCTUATION
    assert punctuation[0].batches == len(records) - 1
    short = new_world(job, folder / "short")
    for role in (Role.PRODUCERS, Role.REPORTS, Role.REPORTS_2):
        for partition in range(len(job.start_offsets[role])):
            values = world.log.values(role, partition)
            for value in values[:-1] if (role, partition) == (Role.REPORTS_2, 1) else values:
                short.log.append(Append(role, partition, value))
    short.settle(["shuffle"])
    # The owner writes its manifest and dies; its successor then finds the missing record.
    owner = Owner(short, "instance-2", 0.0)
    while len(short.log.values(Role.MANIFESTS)) < 2:
        owner.step(1)
    short.log.append(Append(Role.REPORTS_2, 1, records[-1]))
    short.settle()
    parts: dict[int, set[bytes]] = {}
    for value in short.log.values(Role.SHUFFLED, 1):
        chunk = decode_chunk(value)
        parts.setdefault(chunk.instance, set()).add(chunk.words.values.tobytes())
    assert parts[2] == {b""}
    assert cell_counts(short, 1).sum() == len(next(iter(parts[1]))) // 2
    assert sorted(short.published()) == [1]
    world.shut()
    short.shut()


def test_shuffler_rejects_unregistered_producers(folder: Path) -> None:
    job = deployed(producers=1)
    world = new_world(job, folder)
    world.close_epoch("north", 1)
    records = world.log.values(Role.REPORTS_2, 1)
    unregistered = encode_punctuation(
        replace(decode_punctuation(records[-1]), enrollment=bytes(16))
    )
    worker = world.worker("instance-2")
    worker.run(worker.stage.record(1, len(records), unregistered, 0.0))
    (letter,) = worker.driver.pending
    assert DeadLetter.from_record(letter.value, letter.headers).reason is Reason.ENROLLMENT
    world.shut()


def test_parallel_shuffler_accepts_all_epochs_that_the_first_shuffler_accepts(
    folder: Path,
) -> None:
    """The first shuffler can be ahead of others by the maximum number of epochs."""
    job = deployed(epochs=3 * EPOCHS_AHEAD, producers=1)
    world = new_world(job, folder)
    world.close_epoch("north", 1)
    records = world.log.values(Role.REPORTS_2, 1)
    worker = world.worker("instance-2")
    last = 1 + 2 * EPOCHS_AHEAD
    # Every second epoch is in the same partition.
    for offset, epoch in enumerate((last, last + 2), len(records)):
        far = encode_punctuation(replace(decode_punctuation(records[-1]), epoch=epoch))
        worker.run(worker.stage.record(1, offset, far, 0.0))
    (letter,) = worker.driver.pending
    rejected = DeadLetter.from_record(letter.value, letter.headers)
    assert rejected.reason is Reason.EPOCH
    assert rejected.detail.startswith(f"epoch {last + 2} is more than")
    world.shut()


def _seeded(seed: int, purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(seed, number)


FRAGMENTS: dict[str, Any] = {
    "name": "instances",
    "protocol": "fragments",
    "parameters": {"epsilon": 2, "delta": 1e-3, "domain": ["a", "b", "c"], "reports": 4},
    "epochs": {"count": 1},
    "shuffle": {"minimum": 100, "instances": 3},
}


def test_record_sizes_hide_the_number_of_messages() -> None:
    job = deploy_job(make_job(FRAGMENTS), deployed_at=0)
    for devices in (1, 30, 3_000):
        shapes = set()
        for seed, items in enumerate(([1], [0], [1, 2, 3], [3])):
            log = MemoryLog()
            with Producer(
                job,
                None,
                name="gateway",
                transport=MemoryDriver(log),
                generators=partial(_seeded, seed),
            ) as producer:
                producer.enroll([f"{number}" for number in range(devices)])
                producer.report_all(1, np.resize(np.array(items), (devices, 1)))
                producer.close(1)
            shapes.add(tuple(tuple(map(len, log.values(role, 1))) for role in job.route.reports))
            for role in job.route.reports:
                assert kind_of(log.values(role, 1)[0]) is RecordType.BATCH
        assert len(shapes) == 1
        assert len(set(next(iter(shapes)))) == 1, "all sizes are equal"


def test_delta_includes_the_cost_of_dividing_messages_among_shufflers() -> None:
    job = make_job(FRAGMENTS)
    one = make_job({**FRAGMENTS, "shuffle": {"minimum": 100}})
    law, guarantee = job.calibrate(), job.guarantee_of(job.calibrate())
    assert law.delta == math.nextafter(1e-3, 0)  # type: ignore[attr-defined]
    assert guarantee.delta == 1e-3
    assert guarantee.epsilon == one.guarantee_of(one.calibrate()).epsilon
    assert (
        "3 shufflers work in parallel, and each message goes to one of them at random"
    ) in guarantee.trust
    assert "instances" not in one.to_json()["shuffle"]
    assert job.to_json()["shuffle"]["instances"] == 3


def test_dividing_messages_without_enough_delta_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpstream.randomizers.division.REDRAW_PROBABILITY", 2.0**-70)
    with pytest.raises(JobError, match="leaves no delta for dividing messages among 3"):
        make_job(FRAGMENTS).calibrate()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shuffle": {"minimum": 100, "instances": 5}}, "an integer from 1 to 4"),
        ({"shuffle": {"minimum": 100, "instances": 0}}, "an integer from 1 to 4"),
        (
            {
                "protocol": "single_message",
                "parameters": {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]},
                **hidden_sizes(["1", "2"], 1, 1e-3),
            },
            "attributes: has hide_sizes, which cannot be combined with shuffle.instances: deletion",
        ),
        (
            {
                "protocol": "shuffled_counts",
                "parameters": {"epsilon": 1, "delta": 1e-6, "max_changes": 1, "dummies": "shuffle"},
                "shuffle": {"minimum": 1000, "instances": 2},
            },
            r"set parameters\.dummies to poisson",
        ),
    ],
)
def test_unsupported_parallel_shufflers_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        make_job({**FRAGMENTS, **values}).calibrate()
