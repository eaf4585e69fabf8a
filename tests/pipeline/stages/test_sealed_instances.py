"""Test sealed reports with parallel shufflers: key separation, and each report counted once.

Shufflers have keys 2, 3 and 4, and the aggregator has key 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.kafka.memory import (
    MemoryDriver,
    MemoryLog,
)
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.ciphertexts_of_windows import Decryptor
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import Batch
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.frames import RecordType, kind_of
from dpstream.topics.messages import MessageArray
from dpstream.topics.names import Role
from dpstream.topics.records import Reason
from dpstream.topics.sealed_batches import decode_sealed_batch, open_batch
from dpstream.topics.sealed_messages import seal_rows
from dpstream.topics.sealing import Lock
from tests.support.killed_worlds import all_is_read, killed_worlds
from tests.support.sealed_cells import CELLS, EPOCHS, check, new_world, run, written_job
from tests.support.sealing import all_keys, ring, sealed_section, shares_section
from tests.support.world import DEPLOYMENT, Accidents, World

pytestmark = pytest.mark.usefixtures("cells_protocol")

SIDE_BY_SIDE = [[2], [3], [4], [5]]
KEYS = all_keys(SIDE_BY_SIDE)


def deployed(
    stages: Sequence[Sequence[int]] = ((2,), (3,)),
    aggregate: Sequence[int] = (1,),
    rotate: int | None = None,
    instances: int | None = None,
) -> DeployedJob:
    shuffle = {
        "minimum": 10,
        "grace": "60 s",
        "producers": 2,
        "instances": instances or len(stages),
    }
    section = sealed_section(stages, aggregate, rotate)
    job = make_job(written_job(section, shuffle=shuffle))
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


@pytest.mark.usefixtures("small_records", "nothing_in_memory")
def test_partial_window_that_exceeds_memory_is_counted_once(folder: Path) -> None:
    world = run(new_world(deployed(), folder, KEYS))
    check(world)
    assert not world.log.values(Role.DEAD_LETTERS)


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost", marks=pytest.mark.slow),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_when_killed_after_any_action(folder: Path, keep: bool, stride: int) -> None:
    job = deployed()

    def started_and_run(place: Path, accidents: Accidents) -> World:
        return run(new_world(job, place, KEYS, accidents))

    for world in killed_worlds(started_and_run, folder, keep=keep, stride=stride):
        check(world)
        parts = [decode_chunk(value).instance for value in world.log.values(Role.SHUFFLED, 1)]
        assert all(parts.count(instance) > 1 for instance in (1, 2)), "several chunks each"
        assert all_is_read(world, Role.REPORTS, Role.REPORTS_2, Role.SHUFFLED)


def readable_cells(job: DeployedJob, world: World, numbers: Sequence[int]) -> set[int]:
    """Return the cells readable with these private keys in all messages to shufflers."""
    keys, cells = ring(numbers), set[int]()
    for index, role in enumerate(job.route.reports):
        for epoch in range(1, EPOCHS + 1):
            lock = job.locks.of(f"stage {index + 1}", epoch)
            private_key = keys.find(lock.public_key)
            for value in world.log.values(role, epoch % 2):
                if private_key is None or kind_of(value) is not RecordType.SEALED_BATCH:
                    continue
                batch = open_batch(decode_sealed_batch(value), private_key, lock.context)
                try:
                    rows = Decryptor(job, "aggregate", keys).open(epoch, batch.words.values)
                except WrongKeyError:
                    continue
                cells |= set(rows.view("u1")[:, 1].tolist())
    return cells


def world_with_reports(job: DeployedJob, folder: Path) -> World:
    world = new_world(job, folder, KEYS)
    for epoch in range(1, EPOCHS + 1):
        world.close_all(epoch)
    return world


def test_each_shuffler_removes_one_encryption_layer_but_reads_no_report(folder: Path) -> None:
    """This holds even if all collude; with the aggregator, one reads only its partial window."""
    job = deployed(SIDE_BY_SIDE[:3])
    world = world_with_reports(job, folder)
    for role in job.route.reports:
        kinds = {kind_of(value) for value in world.log.values(role, 1)}
        assert kinds == {RecordType.SEALED_BATCH, RecordType.PUNCTUATION}
    for numbers in ([], [1], [2], [3], [4], [2, 3, 4]):
        assert not readable_cells(job, world, numbers), numbers
    alone = [readable_cells(job, world, [1, number]) for number in (2, 3, 4)]
    assert set.union(*alone) == set(range(CELLS)) == readable_cells(job, world, [1, 2, 3, 4])
    for cells in alone:
        assert 0 < len(cells) < CELLS
    world.shut()


def test_key_of_another_shuffler_does_not_decrypt_a_batch(folder: Path) -> None:
    job = deployed()
    world = world_with_reports(job, folder)
    for index, role in enumerate(job.route.reports):
        batch = next(v for v in world.log.values(role, 1) if kind_of(v) is RecordType.SEALED_BATCH)
        assert isinstance(producer_admission(job, KEYS, role).admit(1, batch), Batch)
        other = job.route.reports[1 - index]
        rejected = producer_admission(job, KEYS, other).admit(1, batch)
        assert isinstance(rejected, Rejection)
        assert rejected.reason is Reason.SEALED
        assert "requires key" in rejected.detail
        rejected = producer_admission(job, ring([1, 3 - index]), role).admit(1, batch)
        assert isinstance(rejected, Rejection)
        assert "was erased" in rejected.detail
    world.shut()


def copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Have a producer also send each ciphertext for one shuffler to the other."""
    met: dict[bytes, list[MessageArray]] = {}

    def seal_and_copy(rows: MessageArray, locks: Sequence[Lock]) -> MessageArray:
        own, (lock,) = seal_rows(rows, locks), locks
        before = met.setdefault(lock.context, [])
        before.append(own)
        # Producers send to the first shuffler last, so it gets copies from the other one.
        return own if len(before) != 2 else np.concatenate([before[0], own])

    monkeypatch.setattr("dpstream.pipeline.devices.sealed_records.seal_rows", seal_and_copy)
    world = run(new_world(deployed(), folder, KEYS))
    assert all(len(sent[0]) for sent in met.values()), "nothing was copied"
    return world


@pytest.mark.usefixtures("small_records")
def test_ciphertexts_copied_to_another_shuffler_count_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(copied(folder, monkeypatch))


def test_epoch_is_sealed_to_the_keys_of_its_period(folder: Path) -> None:
    stages = [[2, 5], [3, 6]]
    job = deployed(stages, [1, 7], 1)
    world = new_world(job, folder, all_keys(stages, [1, 7]))
    check(run(world))
    sent = world_with_reports(job, folder / "sent")
    for index, role in enumerate(job.route.reports):
        for epoch in (1, 2):
            value = next(v for v in sent.log.values(role, epoch % 2))
            own = ring([stages[index][epoch - 1]])
            assert isinstance(producer_admission(job, own, role).admit(epoch % 2, value), Batch)
    sent.shut()


FRAGMENTS: dict[str, Any] = {
    "name": "sealed",
    "protocol": "fragments",
    "parameters": {"epsilon": 2, "delta": 1e-3, "domain": ["a", "b", "c"], "reports": 4},
    "epochs": {"count": 1},
    "shuffle": {"minimum": 100, "instances": 3},
    "sealed": sealed_section(SIDE_BY_SIDE[:3]),
}


def _seeded(seed: int, purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(seed, number)


def test_record_sizes_hide_the_number_of_messages() -> None:
    """Messages are padded with cover traffic, which only the aggregator can tell from reports."""
    job = deploy_job(make_job(FRAGMENTS), deployed_at=0)
    records, ciphertexts = set(), set()
    for seed, items in enumerate(([1], [0], [1, 2, 3])):
        log = MemoryLog()
        with Producer(
            job,
            None,
            name="gateway",
            transport=MemoryDriver(log),
            generators=partial(_seeded, seed),
        ) as producer:
            producer.enroll([f"{number}" for number in range(3)])
            producer.report_all(1, np.resize(np.array(items), (3, 1)))
            producer.close(1)
        records.add(tuple(tuple(map(len, log.values(role, 1))) for role in job.route.reports))
        for number, role in enumerate(job.route.reports, 1):
            lock = job.locks.of(f"stage {number}", 1)
            key = KEYS.find(lock.public_key)
            assert key is not None
            in_batches = [
                open_batch(decode_sealed_batch(value), key, lock.context).words.rows
                for value in log.values(role, 1)[:-1]
            ]
            ciphertexts.add(tuple(in_batches))
    assert len(records) == len(ciphertexts) == 1


@pytest.mark.parametrize(
    ("sealed", "instances", "message"),
    [
        (sealed_section([[2]]), 2, "but sealed.stages has 1 key. List one key"),
        (
            sealed_section(SIDE_BY_SIDE),
            1,
            ("chained shufflers; expected at most 3. List fewer, or set shuffle.instances for"),
        ),
        (
            shares_section(),
            2,
            ("shufflers do not open shares, so parallel shufflers have nothing to divide. Remove"),
        ),
        (
            sealed_section([[2, 3], [4, 5]]),
            2,
            ("rotate: is missing; expected the number of epochs for which each key is used"),
        ),
    ],
)
def test_each_shuffler_requires_one_key(
    sealed: dict[str, Any], instances: int, message: str
) -> None:
    with pytest.raises(JobError, match=message):
        make_job(written_job(sealed, shuffle={"minimum": 10, "instances": instances}))
