"""Test live sets of items: every epoch is independent, also across a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.live import CloseEpoch, Held, LiveSource
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.devices.producer_input import LiveProducer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from tests.support.new_jobs import new_job

START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(name="job")
def job_() -> DeployedJob:
    job = new_job(
        "live",
        "count_min",
        {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b", "c"], "items": 2},
        epochs={"count": 5, "start": "2024-01-01", "length": "PT1M"},
        shuffle={"minimum": 10},
    )
    return deploy_job(job, deployed_at=0)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def source_of(job: DeployedJob, first_epoch: int = 1) -> LiveSource:
    calendar = job.epochs.calendar
    assert calendar is not None
    source = LiveSource(calendar, first_epoch, last_epoch=5, domain=job.domain)
    source.receive(b"user,epoch,value\n", at(first_epoch - 1))
    return source


def test_row_adds_an_item_only_to_the_set_of_its_epoch(job: DeployedJob) -> None:
    source = source_of(job)
    assert source.receive(b"ann,1,a\nann,1,b\nann,1,a\nbob,1,\n", at(0.5)) == [
        Held(1, "ann", (1,)),
        Held(1, "ann", (2,)),
        Held(1, "ann", ()),
        Held(1, "bob", ()),
    ]
    assert source.receive(b"ann,2,c\n", at(0.6)) == []
    assert source.tick(at(1.5)) == [CloseEpoch(1), Held(2, "ann", (3,))]
    assert source.receive(b"ann,1,b\n", at(1.6)) == [], "too late"
    assert source.receive(b"ann,2,a\nann,2,b\n", at(1.7)) == [
        Held(2, "ann", (1,)),
        Held(2, "ann", ()),
    ]
    assert source.warnings() == (
        "standard input: 1 row for closed epochs: too late to change them",
        "standard input: 1 row from users with more than 2 items: not used",
    )


class Recorded(Producer):
    sets: dict[int, dict[str, list[int]]]

    def close(self, epoch: int) -> None:
        held = (sorted(row[row > 0].tolist()) for row in self._values[self._present])
        users = np.array(self.users)[self._present].tolist()
        self.sets[epoch] = dict(zip(users, held, strict=True))
        super().close(epoch)


def test_item_sets_at_an_epoch_survive_a_restart(job: DeployedJob, tmp_path: Path) -> None:
    sets: dict[int, dict[str, list[int]]] = {}
    script = [
        (0.1, b"ann,1,a\nbob,1,b\nbob,1,c\n"),
        (1.1, b"ann,2,c\nann,2,c\n"),
        (1.2, b""),
        (1.3, b"ann,2,b\nbob,2,\n"),
        (2.1, b""),
        (3.1, b"eve,4,a\n"),
        (4.1, b""),
    ]
    for minutes, data in script:
        # Every piece of input is read in a run of its own.
        producer = Recorded(job, tmp_path, name="gateway", transport=MemoryDriver(MemoryLog()))
        producer.sets = sets
        with producer:
            live = LiveProducer(producer, tmp_path, user_list=["ann", "bob", "eve"])
            source = source_of(job, producer.closed_epoch + 1)
            live.take(source.receive(data, at(minutes)))
            live.keep()
    assert sets == {
        1: {"ann": [1], "bob": [2, 3], "eve": []},
        2: {"ann": [2, 3], "bob": [], "eve": []},
        3: {"ann": [], "bob": [], "eve": []},
        4: {"ann": [], "bob": [], "eve": [1]},
    }
