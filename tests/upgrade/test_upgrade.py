"""What earlier versions wrote is read, and gone on with as if it had been written today.

``golden/COMMIT`` holds what the version of that commit left behind, see `write_golden`.
"""

from __future__ import annotations

import base64
import gzip
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pipeline.actions import Append, LogRecord
from pipeline.jobs.budgets import Charge
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.jobs_topic import JobsTopic
from pipeline.jobs.phases import Phase
from pipeline.operations.status.heartbeats import Heartbeats
from pipeline.protocols.registry import PROTOCOLS
from pipeline.simulation.memory import MemoryLog
from tests.support.world import World
from tests.upgrade.comparing import same
from tests.upgrade.write_golden import (
    PRODUCERS,
    describe,
    jobs,
    middle_of,
    read_record,
    results_of,
    run_to_the_end,
    world_of,
    write_job,
)
from topics.names import Role

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Left:
    """What a version left behind of a job."""

    folder: Path

    def __str__(self) -> str:
        return f"{self.folder.parent.name}-{self.folder.name}"

    def read(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text())

    @cached_property
    def job(self) -> DeployedJob:
        return DeployedJob.from_bytes((self.folder / "job.json").read_bytes())

    def partitions(self) -> Iterator[tuple[Role, int, int, list[LogRecord]]]:
        """Role, number, end and records of every partition."""
        for held in self.read("log")["partitions"]:
            first = held["end"] - len(held["records"])
            records = [
                LogRecord(
                    offset,
                    base64.b64decode(value),
                    timestamp,
                    None if key is None else base64.b64decode(key),
                    tuple((name, base64.b64decode(content)) for name, content in headers),
                )
                for offset, (value, timestamp, key, headers) in enumerate(held["records"], first)
            ]
            yield Role(held["role"]), held["partition"], held["end"], records

    def log(self) -> MemoryLog:
        """The topics, with the offsets they had."""
        moment = 0
        log = MemoryLog(clock=lambda: moment)
        for role, partition, end, records in self.partitions():
            first = end - len(records)
            for _ in range(first):
                log.append(Append(role, partition, b""))
            log.delete_below(role, partition, first)
            for each in records:
                moment = each.timestamp
                log.append(Append(role, partition, each.value, each.key, each.headers))
            assert log.end(role, partition) == end
        for role, partition, offset in self.read("log")["committed"]:
            log.committed[Role(role), partition] = offset
        return log

    def world(self, folder: Path) -> World:
        """The job as it was left, with today's software."""
        for producer in PRODUCERS:
            (folder / producer).mkdir(parents=True, mode=0o700)
            store = gzip.decompress((self.folder / f"{producer}.sqlite3.gz").read_bytes())
            path = folder / producer / "producer.sqlite3"
            path.touch(mode=0o600)
            path.write_bytes(store)
        world = world_of(self.job, folder)
        world.log = self.log()
        # Ids are random: what is made today is never what was made before.
        world.identifiers = 1 << 64
        return world


LEFT = [Left(folder) for folder in sorted(GOLDEN.glob("*/*")) if folder.is_dir()]

every_left = pytest.mark.parametrize("left", LEFT, ids=str)


def test_every_protocol_was_written_by_an_earlier_version() -> None:
    for version in GOLDEN.iterdir():
        written = {left.job.protocol for left in LEFT if left.folder.parent == version}
        assert written <= set(PROTOCOLS), "a protocol that was deployed cannot be read any more"
    assert {left.job.shuffle.order for left in LEFT} == {"sorted", "random"}
    assert any(left.job.needs_noise_key for left in LEFT)
    assert any(left.job.epochs.renew for left in LEFT)


@every_left
def test_deployed_jobs_and_charges_are_read(left: Left) -> None:
    record = (left.folder / "job.json").read_bytes()
    charge = left.read("expected")["charge"].encode()
    topic = JobsTopic()
    topic.apply(left.job.name.encode(), record)
    topic.apply(Charge.from_bytes(charge).key, charge)
    assert topic.jobs == {left.job.name: left.job}
    assert topic.phase(left.job.name) is Phase.RUNNING
    assert topic.charges == [Charge.of(left.job)]
    assert same(json.loads(left.job.to_bytes()), json.loads(record))
    constants = json.loads(record)["constants"]
    found, then = (
        json.dumps(each, sort_keys=True) for each in (left.job.law().to_json(), constants)
    )
    assert found == then


@every_left
def test_records_say_today_what_they_said_then(left: Left) -> None:
    expected = left.read("expected")["records"]
    seen = set()
    for role, partition, _, records in left.partitions():
        found = [describe(read_record(role, record)) for record in records]
        assert same(found, expected[role][partition])
        seen |= {type(read_record(role, record)).__name__ for record in records}
    assert seen >= {"Manifest", "Chunk", "PartialPart", "EstimateRecord", "DeadLetter"}
    assert seen >= {"Batch", "Punctuation", "Registration", "Farewell"}


@every_left
def test_workers_of_an_earlier_version_are_seen(left: Left) -> None:
    heartbeats = Heartbeats(left.job.deployment)
    told = [json.loads(text) for text in left.read("heartbeats")]
    for offset, beat in enumerate(told):
        key = f"{beat['stage']}/{beat['worker']}".encode()
        heartbeats.apply(LogRecord(offset, json.dumps(beat).encode(), beat["time"], key))
    workers = list(heartbeats.workers(max(beat["time"] for beat in told)))
    assert [worker.stage for worker in workers] == ["shuffle", "aggregate", "publish"]
    for worker, beat in zip(workers, told, strict=True):
        assert worker.alive
        assert list(worker.partitions) == beat["partitions"]
        assert worker.records_per_second == beat.get("records_per_second")
    (window,) = workers[0].windows
    assert window.epoch == middle_of(left.job) + 1
    assert window.waits_for == ("kiosk",)


@every_left
def test_what_a_producer_had_drawn_is_sent_as_it_was_drawn(left: Left, tmp_path: Path) -> None:
    world = left.world(tmp_path)
    with closing(sqlite3.connect(tmp_path / "kiosk" / "producer.sqlite3")) as store:
        drawn = store.execute("SELECT role, partition, value FROM outbox ORDER BY position")
        waiting = drawn.fetchall()
    assert waiting
    before = {key: world.log.end(*key) for key in {(Role(r), p) for r, p, _ in waiting}}
    producer = world.producer("kiosk")
    assert producer.closed_epoch == middle_of(left.job) + 1
    assert producer.users == tuple(world.values["kiosk"][1])
    sent = [
        (role.value, partition, record.value)
        for (role, partition), end in before.items()
        for record in world.log.read(role, partition, end, 1 << 40).records
    ]
    assert sent == waiting
    world.shut()


@every_left
def test_a_job_goes_on_with_what_an_earlier_version_left(left: Left, tmp_path: Path) -> None:
    """The same integers and estimates, whichever version wrote the first half, or both."""
    upgraded, new = left.world(tmp_path / "upgraded"), world_of(left.job, tmp_path / "new")
    for world in (upgraded, new):
        run_to_the_end(world)
        world.shut()
    expected = left.read("expected")["results"]
    assert len(expected) == left.job.epochs.count
    for results in (results_of(upgraded), results_of(new)):
        assert results.keys() == expected.keys()
        for epoch, (found, then) in {e: (results[e], expected[e]) for e in expected}.items():
            assert found["partial"] == then["partial"], epoch
            assert same(found["estimate"], then["estimate"]), epoch
            for key in ("fate", "producers", "contributors", "population"):
                assert found["manifest"][key] == then["manifest"][key], (epoch, key)
    # What was refused is refused once, and nothing of the earlier version's is.
    assert len(upgraded.log.values(Role.DEAD_LETTERS)) == 1


@pytest.mark.parametrize("name", ["hadamard_stream", "stage_noise"])
def test_this_version_writes_what_a_later_one_will_read(name: str, tmp_path: Path) -> None:
    """The golden files of the next upgrade, as they would be written now."""
    write_job(jobs()[name], tmp_path / "now" / name)
    left = Left(tmp_path / "now" / name)
    test_deployed_jobs_and_charges_are_read(left)
    test_records_say_today_what_they_said_then(left)
    test_workers_of_an_earlier_version_are_seen(left)
    test_what_a_producer_had_drawn_is_sent_as_it_was_drawn(left, tmp_path / "producer")
    test_a_job_goes_on_with_what_an_earlier_version_left(left, tmp_path / "job")
