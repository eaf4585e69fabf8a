"""Test sealed reports: all stages under crashes, and what each party can decrypt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.actions import Append
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_files import WrongKeyError
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.stages.admission import Rejection
from dpstream.pipeline.stages.ciphertexts_of_windows import Decryptor, reports_in
from dpstream.pipeline.stages.stage import Stage
from dpstream.pipeline.stages.stage_builder import producer_admission
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import MessageArray, Messages
from dpstream.topics.names import Role
from dpstream.topics.records import DeadLetter, Reason
from dpstream.topics.sealed_messages import pack_reports, seal_rows
from dpstream.topics.sealing import Lock
from tests.support.killed_worlds import all_is_read, killed_worlds
from tests.support.new_jobs import new_job
from tests.support.sealed_cells import (
    CELLS,
    check,
    new_world,
    run,
    written_job,
)
from tests.support.sealing import all_keys, ring, sealed_section
from tests.support.world import DEPLOYMENT, Accidents, World

IN_SERIES = [[2], [3], [4]]


pytestmark = pytest.mark.usefixtures("cells_protocol")


def deployed(
    stages: Sequence[Sequence[int]] = ((2,),),
    aggregate: Sequence[int] = (1,),
    rotate: int | None = None,
    **values: Any,
) -> DeployedJob:
    section = values.pop("sealed", sealed_section(stages, aggregate, rotate))
    job = make_job(written_job(section, **values))
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


def first_window(world: World, role: Role = Role.SHUFFLED) -> Chunk:
    world.close_all(1)
    world.settle(["shuffle"])
    (value,) = world.log.values(role, 1)
    return decode_chunk(value)


@pytest.mark.usefixtures("small_records", "nothing_in_memory")
def test_window_that_exceeds_memory_is_counted_once(folder: Path) -> None:
    """Every stage sorts ciphertexts in files, all of which are closed at the end."""
    world = run(new_world(deployed(IN_SERIES[:2]), folder, all_keys(IN_SERIES)))
    check(world)
    assert not world.log.values(Role.DEAD_LETTERS)
    for role in (Role.HOP_1, Role.SHUFFLED):
        chunks = [decode_chunk(value).words.values for value in world.log.values(role, 1)]
        rows = [row for chunk in chunks for row in chunk.tolist()]
        assert rows == sorted(rows)


@pytest.mark.usefixtures("small_records", "nothing_in_memory")
def test_spill_files_are_closed_after_a_window_is_written(
    folder: Path, spill_files: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(deployed(), folder, all_keys(IN_SERIES))
    monkeypatch.setattr(world.log, "delete_below", lambda *where: None)
    world.close_all(1)
    for writers in (1, 2):
        world.settle(["shuffle"])
        chunks = [decode_chunk(value) for value in world.log.values(Role.SHUFFLED, 1)]
        assert len({chunk.attempt for chunk in chunks}) == writers
        assert spill_files
        assert all(file.closed for file in spill_files)
        # The successor finds no commit, so the window is pending again.
        world.kill("shuffle")
        world.log.committed.clear()
        spill_files.clear()
    world.shut()


@pytest.mark.slow
@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(False, id="unflushed lost"),
        pytest.param(True, id="unflushed kept", marks=pytest.mark.verify),
    ],
)
def test_stages_recover_when_killed_after_any_action(folder: Path, keep: bool, stride: int) -> None:
    job, keys = deployed(IN_SERIES[:2]), all_keys(IN_SERIES)

    def started_and_run(place: Path, accidents: Accidents) -> World:
        return run(new_world(job, place, keys, accidents))

    for world in killed_worlds(started_and_run, folder, keep=keep, stride=stride):
        check(world)
        assert len(world.log.values(Role.HOP_1, 1)) >= 3
        assert all_is_read(world, Role.REPORTS, Role.HOP_1, Role.SHUFFLED)


def readable_cells(job: DeployedJob, world: World, numbers: Sequence[int]) -> set[int]:
    """Return the cells readable with these private keys in all records ever written."""
    keys, cells = ring(numbers), set[int]()
    assert job.sealed is not None
    for value in (*world.log.values(Role.REPORTS, 1), *world.log.values(Role.REPORTS, 0)):
        for cell in range(CELLS):
            if value.find(np.array([cell + 1000], "<u4").tobytes()) >= 0:
                cells.add(cell)
    for role in (*job.route.hops, Role.SHUFFLED):
        for epoch in (1, 2):
            for value in world.log.values(role, epoch % 2):
                chunk = decode_chunk(value)
                rows = chunk.words.values
                for party in job.locks.parties_after(role):
                    try:
                        rows = Decryptor(job, party, keys).open(epoch, rows)
                    except WrongKeyError:
                        break
                else:
                    cells |= set(rows.view("u1")[:, 1].tolist())
    return cells


def test_shufflers_cannot_read_reports_even_if_all_collude(folder: Path) -> None:
    """Only the aggregate key decrypts reports, and only as messages without order."""
    job = deployed(IN_SERIES)
    world = run(new_world(job, folder, all_keys(IN_SERIES)))
    for numbers in ([], [2], [3], [4], [2, 3], [2, 3, 4]):
        assert not readable_cells(job, world, numbers), numbers
    assert readable_cells(job, world, [1]) == set(range(CELLS))


def test_aggregator_sees_no_ciphertext_of_an_earlier_stage(folder: Path) -> None:
    """The output of a stage has no bytes in common with the ciphertexts of its input."""
    job = deployed(IN_SERIES)
    world = run(new_world(job, folder, all_keys(IN_SERIES)))
    fragments: list[set[bytes]] = []
    for role in (*job.route.hops, Role.SHUFFLED):
        rows = np.concatenate([decode_chunk(v).words.values for v in world.log.values(role, 1)])
        fragments.append({row.tobytes()[i : i + 8] for row in rows for i in range(0, 56, 8)})
    assert not fragments[0] & fragments[1]
    assert not fragments[1] & fragments[2]


@pytest.mark.parametrize(
    ("stages", "written", "reader"),
    [(1, Role.SHUFFLED, "aggregate"), (2, Role.HOP_1, "shuffle-2")],
)
def test_copied_ciphertext_counts_once(
    folder: Path, stages: int, written: Role, reader: str
) -> None:
    """The stage drops duplicates, and the next party rejects duplicates of a stage."""
    job, keys = deployed(IN_SERIES[:stages]), all_keys(IN_SERIES)
    world = new_world(job, folder, keys)
    chunk = first_window(world, written)
    repeated = np.repeat(chunk.words.values, 2, axis=0)
    forged = replace(chunk, attempt=bytes(16), words=Messages(repeated))
    worker = world.worker(reader)
    steps = worker.stage.record(1, 0, encode_chunk(forged), 0.0)
    worker.run(steps)
    (letter,) = worker.driver.pending
    rejected = DeadLetter.from_record(letter.value, letter.headers)
    assert rejected.reason is Reason.PROTOCOL
    assert "out of order or duplicated" in rejected.detail
    world.kill(reader)
    world.settle()
    assert world.published()[1].headline is not None
    world.shut()


@pytest.mark.parametrize("stages", [1, 2])
def test_report_that_is_sent_many_times_counts_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, stages: int
) -> None:
    """A batch repeats a ciphertext, or several outer ciphertexts contain the same inner one."""

    def seal_twice(rows: MessageArray, locks: Sequence[Lock]) -> MessageArray:
        innermost = seal_rows(rows, locks[:1])
        return seal_rows(np.repeat(innermost, 2, axis=0), locks[1:])

    monkeypatch.setattr("dpstream.pipeline.devices.sealed_records.seal_rows", seal_twice)
    check(run(new_world(deployed(IN_SERIES[:stages]), folder, all_keys(IN_SERIES))))


@pytest.mark.parametrize("arrival", [1, -1], ids=["first chunk first", "last chunk first"])
@pytest.mark.parametrize("order", [[1, 0], [0, 0], [0, 2, 1]])
def test_unsorted_ciphertexts_are_rejected(folder: Path, order: list[int], arrival: int) -> None:
    job = deployed()
    world = new_world(job, folder, all_keys(IN_SERIES))
    chunk = first_window(world)
    thirds = np.array_split(chunk.words.values, 3)
    stage: Stage = world.worker("aggregate").stage
    for index, third in list(enumerate(order))[::arrival]:
        chunk = Chunk(
            job.fingerprint, DEPLOYMENT, 1, 0, bytes(16), index, len(order), Messages(thirds[third])
        )
        world.worker("aggregate").run(stage.record(1, index, encode_chunk(chunk), 0.0))
    counts = stage.heartbeat()["counts"]
    assert isinstance(counts, dict)
    assert counts["dead letters protocol"] >= 1
    assert not world.integers()
    world.shut()


def test_cover_traffic_and_ciphertexts_for_other_keys_are_dropped(folder: Path) -> None:
    job = new_job(
        "sealed",
        "fragments",
        {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]},
        count=1,
        minimum=100,
        sealed=sealed_section([[2]]),
    )
    fragments = deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)
    sizes, cover_traffic = set(), set()
    for item in (1, 2):
        users = {f"{user}": item for user in range(100)}
        place = folder / str(item)
        world = World(fragments, place, {"north": {1: users}}, keys=all_keys([[2]]))
        world.close_epoch("north", 1)
        sizes.add(tuple(len(value) for value in world.log.values(Role.REPORTS, 1)))
        world.settle()
        world.shut()
        cover_traffic.add(world.workers == {} and len(world.log.values(Role.SHUFFLED, 1)))
        assert world.published()[1].window_status is WindowStatus.RELEASED
    assert len(sizes) == 1
    counts = [decode_chunk(value).words.rows for value in world.log.values(Role.SHUFFLED, 1)]
    shuffling = fragments.protocol_entry.shuffling
    assert shuffling is not None
    assert sum(counts) == shuffling.capacity(fragments.law, 1, 100)


def test_stage_forwards_a_rewritten_window_once(folder: Path) -> None:
    world = new_world(deployed(IN_SERIES[:2]), folder, all_keys(IN_SERIES))
    world.close_all(1)
    world.settle(["shuffle"])
    (value,) = world.log.values(Role.HOP_1, 1)
    again = replace(decode_chunk(value), attempt=b"another attempt.")
    world.log.append(Append(Role.HOP_1, 1, encode_chunk(again)))
    world.settle(["shuffle-2"])
    assert len(world.log.values(Role.SHUFFLED, 1)) == 1
    counts = world.worker("shuffle-2").stage.heartbeat()["counts"]
    reports = decode_chunk(value).words.rows
    assert counts == {"windows": 1, "reports": reports, "ciphertexts that do not open": 0}
    world.shut()


def test_invalid_reports_are_dropped() -> None:
    job = deployed()
    words = np.array([[1], [CELLS], [2], [2**16 - 1]], job.message_format.dtype)
    rows = pack_reports(words, 1, job.message_format)
    reports = reports_in(rows, job.message_format, job.aggregator(), 1)
    assert reports[:, 0].tolist() == [1, 2]


def test_undecryptable_ciphertexts_do_not_change_estimates(folder: Path) -> None:
    job = deployed()
    world = new_world(job, folder, all_keys(IN_SERIES))
    chunk = first_window(world)
    junk = np.full((1, chunk.words.width), 2**64 - 1, "<u8")
    rows = np.concatenate([chunk.words.values, junk])
    forged = replace(chunk, attempt=bytes(16), words=Messages(rows))
    worker = world.worker("aggregate")
    worker.run(worker.stage.record(1, 0, encode_chunk(forged), 0.0))
    worker.run(worker.stage.tick(0.0))
    counts = worker.stage.heartbeat()["counts"]
    assert counts == {"reports": CELLS, "cover traffic": 1, "partials": 1}
    world.settle()
    record = world.published()[1]
    assert record.headline is not None
    assert (record.headline.ci95_low, record.headline.ci95_high) == (1.0, 1.0)
    world.shut()


def test_batches_that_are_wrongly_sealed_become_dead_letters(folder: Path) -> None:
    job, plain = deployed(), deployed([[9]])
    world = new_world(plain, folder, all_keys([[9]]))
    world.close_epoch("north", 1)
    (batch, _) = world.log.values(Role.REPORTS, 1)
    world.shut()
    # Records of another job's producer have its fingerprint; here only the key differs.
    forged = DeployedJob.model_copy(job, update={"fingerprint": plain.fingerprint})
    rejected = producer_admission(forged, all_keys(IN_SERIES)).admit(1, batch)
    assert isinstance(rejected, Rejection)
    assert rejected.reason is Reason.SEALED
    assert "requires key" in rejected.detail

    unsealed = deployed().model_copy(update={"sealed": None})
    open_world = new_world(unsealed, folder / "open", KeyRing({}))
    open_world.close_epoch("north", 1)
    (batch, _) = open_world.log.values(Role.REPORTS, 1)
    open_world.shut()
    rejected = producer_admission(job, all_keys(IN_SERIES)).admit(1, batch)
    assert isinstance(rejected, Rejection)
    assert rejected.detail == "batch is not sealed; expected a sealed batch"


@pytest.mark.parametrize("stage", ["shuffle", "shuffle-2", "aggregate"])
def test_stage_does_not_start_without_its_key(folder: Path, stage: str) -> None:
    own = {"shuffle": 2, "shuffle-2": 3, "aggregate": 1}[stage]
    others = ring({1, 2, 3} - {own})
    world = new_world(deployed(IN_SERIES[:2]), folder, others)
    with pytest.raises(WrongKeyError, match="Copy the key that 'dpstream keygen' created"):
        world.stage(stage)
    world.keys = ring([own])
    assert world.stage(stage)


class TestRotation:
    job = staticmethod(partial(deployed, [[2, 5], [3, 6]], [1, 7], 1))

    def test_epoch_is_sealed_to_the_keys_of_its_period(self, folder: Path) -> None:
        job = self.job()
        world = run(new_world(job, folder, all_keys([[2, 5], [3, 6]], [1, 7])))
        check(world)
        assert readable_cells(job, world, [1, 7]) == set(range(CELLS))
        assert job.sealed is not None
        periods = [job.sealed.public_key("aggregate", epoch) for epoch in (1, 2, 3, 99)]
        assert periods[0] != periods[1] == periods[2] == periods[3]
        assert job.sealed.last_epoch_of("aggregate", 0) == 1
        assert job.sealed.last_epoch_of("aggregate", 1) is None

    def test_erased_key_makes_only_its_epochs_unreadable(self, folder: Path) -> None:
        job = self.job()
        world = run(new_world(job, folder, all_keys([[2, 5], [3, 6]], [1, 7])))
        later = ring([5, 6, 7])
        rows = {
            epoch: decode_chunk(world.log.values(Role.SHUFFLED, epoch % 2)[0]).words.values
            for epoch in (1, 2)
        }
        opener = Decryptor(job, "aggregate", later)
        assert len(opener.open(2, rows[2])) == CELLS
        with pytest.raises(WrongKeyError, match="cannot be read without that key"):
            opener.open(1, rows[1])
        with pytest.raises(WrongKeyError, match="no private key"):
            Decryptor(job, "aggregate", ring([1]))


@pytest.mark.parametrize(
    ("sealed", "message"),
    [
        ({"aggregate": "nowhere.pub", "stages": []}, "cannot read the public key nowhere.pub"),
        (sealed_section([]), "stages"),
        (sealed_section([[2], [3], [4], [5]]), "stages"),
        (
            sealed_section([[1]]),
            ("a key is listed twice; expected a different key for every party and key period"),
        ),
        (
            sealed_section([[2, 3]]),
            ("rotate: is missing; expected the number of epochs for which each key is used"),
        ),
        ({"stages": [[3]], "aggregate": 3}, "3 is not the name of a file"),
    ],
)
def test_invalid_key_lists_are_rejected(sealed: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        deployed(sealed=sealed)


def test_settings_that_make_reports_distinguishable_are_rejected() -> None:
    with pytest.raises(JobError, match=r"shuffle\.order is random"):
        deployed(shuffle={"minimum": 10, "order": "random"})
    noisy: dict[str, Any] = {
        "protocol": "shuffled_counts",
        "parameters": {"epsilon": 1, "delta": 1e-6, "max_changes": 1, "dummies": "shuffle"},
        "shuffle": {"minimum": 1000},
    }
    with pytest.raises(JobError, match=r"set parameters\.dummies to poisson"):
        deployed(**noisy)


def test_keys_are_part_of_the_fingerprint() -> None:
    assert deployed([[2]]).fingerprint != deployed([[3]]).fingerprint
    read = DeployedJob.from_bytes(deployed(IN_SERIES, rotate=5).to_bytes())
    assert read.sealed == deployed(IN_SERIES, rotate=5).sealed
    plain = deployed(sealed=None)
    assert b"sealed" not in plain.to_bytes().replace(b'"name":"sealed"', b"")
