"""Windows in parts of many producers: a code stands for their drawings, though some lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from pipeline.actions import Append, LogRecord
from pipeline.jobs.deployed_job import MANY_PRODUCERS, DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.roster import Roster
from pipeline.recording.record_raw import RawLog
from pipeline.recording.recordings import LostRange
from pipeline.simulation.memory import MemoryDriver, MemoryLog, MemoryWorker
from pipeline.stages.decision_log import DecisionLog
from pipeline.stages.drawings import decided_drawings
from pipeline.stages.part_log import PartLog, PartPlace
from pipeline.stages.shuffle_decision import COPIED_MAX
from pipeline.stages.shuffling_stage import shuffling_stage
from topics.batches import Batch, Punctuation, batch_id, encode_batch, encode_punctuation
from topics.chunks import decode_chunk
from topics.drawing_codes import CHECKS, DrawingCode
from topics.manifest_parts import Part, decode_part, encode_part, is_part
from topics.manifests import (
    PRODUCERS_OF_CODES_MAX,
    PRODUCERS_OF_INSTANCES_MAX,
    decode_manifest,
    read_head,
)
from topics.names import Role
from topics.records import Registration
from topics.short_manifests import base_of
from topics.words import Words

PRODUCERS = CHECKS + 40
pytestmark = pytest.mark.usefixtures("cells_protocol")


def deployed(producers: int = PRODUCERS, **topics: int) -> DeployedJob:
    values = {
        "name": "drawn",
        "protocol": "cells",
        "parameters": {"cells": 4 * PRODUCERS},
        "epochs": {"count": 4},
        "shuffle": {"minimum": 1, "grace": "1h", "producers": producers},
        "topics": {"partitions": 2, "lanes": 2, **topics},
    }
    return deploy_job(make_job(values), deployment=bytes(range(16)), deployed_at=0)


class KeepingLog(MemoryLog):
    """Deletes nothing, so that what was released may be released again."""

    def delete_below(self, role: Role, partition: int, offset: int) -> None:
        pass


def enrolment(number: int) -> bytes:
    return number.to_bytes(16, "big")


def drawing(epoch: int, number: int, copy: int) -> bytes:
    rng = np.random.default_rng([epoch, number, copy])
    return rng.bytes(8)


def cell(number: int, copy: int, lane: int) -> int:
    """Of whom a report is, of which drawing, and in which lane."""
    return 4 * number + 2 * copy + lane - 1


@dataclass
class Lanes:
    """A job in two lanes, a worker for each, and what producers send, record by record."""

    job: DeployedJob
    attempts: Iterable[int]

    def __post_init__(self) -> None:
        self.log = KeepingLog()
        for number in range(PRODUCERS):
            record = Registration(self.job.deployment, f"p{number}", enrolment(number), 1)
            self.log.append(Append(Role.PRODUCERS, 0, record.to_bytes()))
        self.workers = [self.worker(), self.worker()]

    def worker(self) -> MemoryWorker:
        attempts = iter(self.attempts)
        stage = shuffling_stage(
            self.job,
            identifiers=lambda: next(attempts).to_bytes(16, "big"),
            wall_clock=lambda: 5,
            broker_time=lambda: None,
            generator=np.random.default_rng(0),
        )
        return MemoryWorker(stage, self.log)

    def begin(self) -> None:
        for partition, worker in enumerate(self.workers):
            worker.run(worker.assign(partition))

    def send(self, epoch: int, lane: int, number: int, copy: int = 0, *, drew: int = 0) -> None:
        """A batch of one report, and the punctuation; of another drawing if it lies."""
        identity = self.job.fingerprint, self.job.deployment
        name = drawing(epoch, number, copy + 2 * drew)
        words = Words(np.full((1, 1), cell(number, copy, lane), np.uint16))
        batch = Batch(*identity, batch_id(name, 0), enrolment(number), epoch, words)
        said = Punctuation(*identity, enrolment(number), epoch, 1, 1, 500 + 7 * number, name)
        place = self.job.partition_of(epoch, lane)
        self.log.append(Append(Role.REPORTS, place, encode_batch(batch)))
        self.log.append(Append(Role.REPORTS, place, encode_punctuation(said)))

    def work(self, *partitions: int) -> None:
        for partition in partitions:
            worker = self.workers[partition]
            worker.run(worker.drain())

    def released(self, epoch: int) -> dict[bytes, tuple[int, list[int]]]:
        """By attempt, lane by lane: of which it is, and its cells."""
        found: dict[bytes, tuple[int, list[int]]] = {}
        places = [self.job.partition_of(epoch, lane) for lane in (1, 2)]
        for value in (each for place in places for each in self.log.values(Role.SHUFFLED, place)):
            chunk = decode_chunk(value)
            if chunk.epoch == epoch:
                cells = found.setdefault(chunk.attempt, (chunk.instance, []))[1]
                cells += np.repeat(chunk.words.values[:, 0], chunk.words.occurrences).tolist()
        return found

    def read(self, role: Role, partition: int) -> list[LogRecord]:
        return list(self.log.read(role, partition, 0, self.log.end(role, partition)).records)


def begun(**topics: int) -> Lanes:
    world = Lanes(deployed(**topics), count(1))
    world.begin()
    return world


def cells_of(copies: Sequence[int], lane: int, left_out: Iterable[int] = ()) -> list[int]:
    """What a lane holds, if of each producer that drawing is in."""
    out = set(left_out)
    return [cell(number, copies[number], lane) for number in range(PRODUCERS) if number not in out]


def test_a_window_of_many_is_under_a_code_and_its_other_lane_under_its_offset() -> None:
    world = begun()
    for epoch in (1, 2):
        for lane in (2, 1):
            for number in range(PRODUCERS):
                world.send(epoch, lane, number)
        world.work(0, 1, 0, 1)
    records = world.log.values(Role.MANIFESTS)
    assert [is_part(record) for record in records] == [False, True, False, True]
    assert decode_manifest(records[0]).code is not None
    assert [len(each) for each in records[1:]] == [92, 1_162, 92]
    assert base_of(records[2]) == 0
    assert [decode_part(records[place]).decision for place in (1, 3)] == [0, 2]
    nobody = [0] * PRODUCERS
    for epoch in (1, 2):
        assert list(world.released(epoch).values()) == [
            (lane, cells_of(nobody, lane)) for lane in (1, 2)
        ]
    # Whoever takes over finds no offsets committed, and writes all of it again.
    once = [list(world.released(epoch).values()) for epoch in (1, 2)]
    world.log.committed.clear()
    world.log.committed_by.clear()
    world.workers = [world.worker(), world.worker()]
    world.begin()
    for epoch in (1, 2):
        assert sorted(world.released(epoch).values()) == sorted(2 * once[epoch - 1])


@pytest.mark.parametrize("copied", [1, COPIED_MAX, CHECKS])
def test_lanes_are_of_the_drawing_that_was_decided_in_whatever_order_copies_are_whole(
    copied: int,
) -> None:
    """Of copies the other drawing is whole in the first lane when the window is decided, or not.

    Two producers lie: one sends the other lane another drawing than the first, one sends it none.
    """
    world, liars = begun(), (PRODUCERS - 1, PRODUCERS - 2)
    honest = copied if copied < CHECKS else CHECKS - 3
    for number in range(PRODUCERS):
        if number < honest:
            world.send(1, 2, number, 1)
        if number == liars[0]:
            world.send(1, 2, number, 0, drew=1)
        elif number != liars[1]:
            world.send(1, 2, number, 0)
    for number in range(PRODUCERS):
        world.send(1, 1, number, 0)
    for number in range(min(honest, COPIED_MAX)):
        world.send(1, 1, number, 1)
    world.work(0, 1, 0, 1)
    assert read_head(world.log.values(Role.MANIFESTS)[0]).contributors == PRODUCERS
    nobody = [0] * PRODUCERS
    assert dict(world.released(1).values()) == {
        1: cells_of(nobody, 1),
        2: cells_of(nobody, 2, liars),
    }
    once = list(world.released(1).values())
    world.log.committed.clear()
    world.log.committed_by.clear()
    # More comes in after what was said of the lane, and changes nothing.
    for number in range(PRODUCERS):
        world.send(1, 2, number, 1, drew=2)
    world.workers = [world.worker(), world.worker()]
    world.begin()
    assert sorted(world.released(1).values()) == sorted(2 * once)


def test_where_many_are_seen_to_be_copied_drawings_are_named() -> None:
    world = begun()
    for lane in (2, 1):
        for number in range(PRODUCERS):
            for copy in (1, 0) if lane == 2 else (0, 1):
                world.send(1, lane, number, copy)
    world.work(0, 1, 0, 1)
    decision, part = world.log.values(Role.MANIFESTS)
    assert len(decode_manifest(decision).drawings) == PRODUCERS
    assert is_part(part)
    nobody = [0] * PRODUCERS
    assert dict(world.released(1).values()) == {1: cells_of(nobody, 1), 2: cells_of(nobody, 2)}


def test_beyond_what_a_code_knows_nothing_is_put_together_of_two_drawings() -> None:
    """Who has one whole drawing there is in with it, who has several with none."""
    producers = 4 * CHECKS
    enrolments = [enrolment(number) for number in range(producers)]
    row = [drawing(1, number, 0) for number in range(producers)]
    whole = {each: [name] for each, name in zip(enrolments, row, strict=True)}
    code = DrawingCode.of(row)
    # The other one came first.
    for number in range(CHECKS):
        whole[enrolments[number]] = [drawing(1, number, 1), row[number]]
    exactly = dict(zip(enrolments, row, strict=True))
    assert decided_drawings(code, enrolments, whole) == exactly
    # The decided one came first: of so many more.
    for number in range(CHECKS, 3 * CHECKS):
        whole[enrolments[number]] = [row[number], drawing(1, number, 1)]
    for number in range(CHECKS // 2):
        whole[enrolments[number]] = [drawing(1, number, 1), row[number]]
    for number in range(CHECKS // 2, CHECKS):
        whole[enrolments[number]] = [row[number]]
    assert decided_drawings(code, enrolments, whole) == exactly
    for number in range(CHECKS // 2 + 1):
        whole[enrolments[number]] = [drawing(1, number, 1), row[number]]
    known = decided_drawings(code, enrolments, whole)
    assert known == {
        each: name
        for number, (each, name) in enumerate(exactly.items())
        if CHECKS // 2 + 1 <= number < CHECKS or number >= 3 * CHECKS
    }
    del whole[enrolments[-1]]
    assert enrolments[-1] not in decided_drawings(code, enrolments, whole)


def test_a_part_under_another_decision_is_passed_over() -> None:
    world = begun()
    for lane in (2, 1):
        for number in range(PRODUCERS):
            world.send(1, lane, number)
    world.work(1)
    job = world.job
    forged = Part(job.fingerprint, job.deployment, 1, 0, 0, 0, 2, 7)
    stranger = replace(forged, deployment=bytes(16), decision=0)
    for each in (forged, stranger, replace(forged, epoch=2)):
        world.log.append(Append(Role.MANIFESTS, 0, encode_part(each)))
    world.work(0)
    nobody = [0] * PRODUCERS
    assert dict(world.released(1).values()) == {1: cells_of(nobody, 1), 2: cells_of(nobody, 2)}
    found: list[PartPlace] = []
    decisions = DecisionLog(job)
    parts = PartLog(job, decisions, (2,), lambda part, record: found.append(part))
    for record in 2 * world.read(Role.MANIFESTS, 0):
        decisions.apply(record)
        parts.apply(record)
    assert found == [PartPlace(1, 2, 0, 2 * PRODUCERS, 0)]


def test_parts_are_found_where_raw_reports_are_recorded() -> None:
    world = begun()
    for lane in (2, 1):
        for number in range(PRODUCERS):
            world.send(1, lane, number)
    world.work(1, 0)
    decision, run = (
        decode_manifest(world.log.values(Role.MANIFESTS)[0]),
        MemoryDriver(world.log).run,
    )
    end = 2 * PRODUCERS
    for begin, lacking in ((end - 1, [Role.REPORTS]), (end, [])):
        lost = LostRange(0, begin, end + 9, Role.REPORTS.value)
        log = RawLog(world.job, 1, {}, [lost])
        run(log.find_end())
        assert log.lacking(decision) == lacking


@pytest.mark.parametrize(
    ("producers", "topics", "coded"),
    [
        (MANY_PRODUCERS, {}, True),
        (MANY_PRODUCERS - 1, {}, False),
        (MANY_PRODUCERS, {"lanes": 1}, False),
    ],
)
def test_jobs_in_parts_that_wait_for_many_producers_have_codes_of_drawings(
    producers: int, topics: dict[str, Any], coded: bool
) -> None:
    job = deployed(producers, **topics)
    assert job.drawing_codes == coded
    # Earlier software reads the jobs that have none.
    assert (b"drawing_codes" in job.to_bytes()) == coded
    assert DeployedJob.from_bytes(job.to_bytes()) == job


def test_a_job_of_an_earlier_version_goes_on_with_whole_manifests_that_name_drawings() -> None:
    world = Lanes(deployed().model_copy(update={"drawing_codes": False}), count(1))
    world.begin()
    for lane in (2, 1):
        for number in range(PRODUCERS):
            world.send(1, lane, number)
    world.work(1, 0)
    manifests = [decode_manifest(record) for record in world.log.values(Role.MANIFESTS)]
    assert [each.instance for each in manifests] == [1, 2]
    assert manifests[0].drawings == manifests[1].drawings
    assert len(manifests[0].drawings) == PRODUCERS


def test_a_code_leaves_room_for_three_times_as_many_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PRODUCERS_OF_CODES_MAX > 2.9 * PRODUCERS_OF_INSTANCES_MAX
    monkeypatch.setattr("pipeline.jobs.roster.PRODUCERS_OF_INSTANCES_MAX", 3)
    monkeypatch.setattr("pipeline.jobs.roster.PRODUCERS_OF_CODES_MAX", 5)
    for codes, most in ((False, 3), (True, 5)):
        job = deployed().model_copy(update={"drawing_codes": codes})
        roster = Roster(job)
        for number in range(7):
            record = Registration(job.deployment, f"p{number}", enrolment(number), 1)
            roster.apply(LogRecord(number, record.to_bytes()))
        assert len(roster) == most
