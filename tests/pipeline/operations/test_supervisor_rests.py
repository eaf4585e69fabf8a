"""Test a supervisor's detection of idle workers, and the events that wake them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any, cast

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.workers.resting import NOTE, RestNote, idle_heartbeat
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.operations.supervisor.rests import (
    RestingJob,
    RestWatch,
    first_rest,
    noted_rest,
)
from dpstream.pipeline.operations.supervisor.wanted import Task
from dpstream.pipeline.stages.idle_condition import IdleCondition
from dpstream.pipeline.state import private_folder, worker_folder
from dpstream.topics.names import Role
from tests.support.small_run import job_text

JOB = deploy_job(parse_job(job_text()), deployed_at=0, deployment=bytes(16))
VERSION = Task.version_of(JOB)
ENDS = IdleCondition({Role.PARTIALS: (3,), Role.MANIFESTS: (4,)})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    return private_folder(worker_folder(JOB.name, "publish", "w"))


def test_a_note_counts_for_the_version_it_was_left_by(folder: Path) -> None:
    assert noted_rest(JOB, VERSION, "publish", "w") is None
    RestNote(ENDS, VERSION.hex(), idle_heartbeat(stage="publish")).write(folder, "metrics 1")
    rest = noted_rest(JOB, VERSION, "publish", "w")
    assert rest is not None
    assert (rest.rest, rest.metrics, rest.words["resting"]) == (ENDS, "metrics 1", True)
    assert rest.until == pytest.approx(time.monotonic() + 86_400, abs=60)
    assert noted_rest(JOB, b"another", "publish", "w") is None
    (folder / NOTE).write_text("{")
    assert noted_rest(JOB, VERSION, "publish", "w") is None


@pytest.mark.parametrize("seconds", [5.5, math.inf])
def test_a_note_is_read_as_it_was_written(folder: Path, seconds: float) -> None:
    rest = IdleCondition({Role.REPORTS: (3, 4), Role.PARTIALS: (1,)}, seconds)
    RestNote(rest, "version", {"words": [1, None]}).write(folder, "metrics")
    note = RestNote.read(folder)
    assert note is not None
    assert (note.rest, note.version, note.words) == (rest, "version", {"words": [1, None]})
    assert note.metrics == "metrics"
    assert note.since == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize(
    "changed",
    [
        {"rest": 3},
        {"rest": {"ends": {"nothing": [1]}, "seconds": 1}},
        {"words": []},
        {"since": "x"},
    ],
)
def test_a_note_of_another_form_says_nothing(folder: Path, changed: dict[str, object]) -> None:
    RestNote(ENDS, "version", {}).write(folder, "")
    body = json.loads((folder / NOTE).read_text())
    for text in (json.dumps(body | changed), "[]", "{}", "x", "[" * 100_000):
        (folder / NOTE).write_text(text)
        assert RestNote.read(folder) is None


def test_time_goes_on_while_no_supervisor_runs(folder: Path) -> None:
    RestNote(IdleCondition({}, 500.0), VERSION.hex(), {}).write(folder, "")
    body = json.loads((folder / NOTE).read_text())
    (folder / NOTE).write_text(json.dumps(body | {"since": body["since"] - 400}))
    rest = noted_rest(JOB, VERSION, "publish", "w")
    assert rest is not None
    assert rest.until == pytest.approx(time.monotonic() + 100, abs=60)


class Broker:
    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, ...]] = {
            JOB.topic(Role.PARTIALS): (3,),
            JOB.topic(Role.MANIFESTS): (4,),
            JOB.topic(Role.STATUS): (9,),
        }
        self.said: list[dict[str, Any]] = []

    @property
    def producer(self) -> Broker:
        return self

    def send(self, topic: str, value: bytes, *, key: bytes, partition: int) -> None:
        assert (topic, key, partition) == (JOB.topic(Role.STATUS), b"publish/w", 0)
        self.said.append(json.loads(value))

    def ends(self, partitions: dict[str, int]) -> dict[str, tuple[int, ...]]:
        status = {JOB.topic(Role.STATUS): 1}
        woken_by = {JOB.topic(Role.PARTIALS): 1, JOB.topic(Role.MANIFESTS): 1}
        assert partitions in (status, woken_by)
        return {topic: ends for topic, ends in self.topics.items() if topic in partitions}


def resting(rest: IdleCondition = ENDS, seconds: float = math.inf) -> RestingJob:
    return RestingJob(JOB, rest, {"resting": True}, "", time.monotonic() + seconds)


@pytest.mark.parametrize(
    "change",
    [
        {JOB.topic(Role.MANIFESTS): (5,)},
        {JOB.topic(Role.PARTIALS): (2,)},
        {JOB.topic(Role.PARTIALS): ()},
    ],
    ids=["grown", "made anew", "gone"],
)
def test_an_end_that_differs_wakes_once_and_nothing_else_does(
    change: dict[str, tuple[int, ...]],
) -> None:
    broker, woken = Broker(), list[str]()
    watch = RestWatch("publish", "w", woken.append)
    watch.add(resting(), said=False)
    for _ in range(3):
        watch.look(cast(Cluster, broker))
    assert woken == []
    assert len(broker.said) == 1, "it is said once a minute"
    broker.topics |= change
    for _ in range(2):
        watch.look(cast(Cluster, broker))
    assert woken == [JOB.name]


def test_a_rest_that_is_over_wakes_and_one_that_is_given_up_does_not() -> None:
    broker, woken = Broker(), list[str]()
    watch = RestWatch("publish", "w", woken.append)
    watch.add(resting(seconds=-1.0), said=True)
    watch.look(cast(Cluster, broker))
    assert woken == [JOB.name]
    assert broker.said == [], "its worker has just said it"
    watch.add(resting(seconds=-1.0), said=True)
    watch.keep(())
    watch.look(cast(Cluster, broker))
    assert woken == [JOB.name]


def test_what_can_be_said_nowhere_holds_up_nobody() -> None:
    broker, woken = Broker(), list[str]()
    del broker.topics[JOB.topic(Role.STATUS)]
    watch = RestWatch("publish", "w", woken.append)
    watch.add(resting(), said=False)
    watch.look(cast(Cluster, broker))
    assert broker.said == []


@pytest.mark.parametrize(("age", "alive"), [(100, True), (200, False)])
def test_one_that_rests_is_alive_as_long_as_it_is_said(age: int, alive: bool) -> None:
    heartbeats = Heartbeats(JOB)
    words = idle_heartbeat(deployment=JOB.deployment.hex(), stage="publish", worker="w")
    record = LogRecord(0, json.dumps(words).encode(), 1000, b"publish/w")
    heartbeats.apply(record)
    (worker,) = heartbeats.workers(1000 + 1000 * age)
    assert (worker.resting, worker.alive) == (True, alive)


def test_who_never_ran_rests_until_anything_is_written() -> None:
    rest = first_rest(JOB, "shuffle", "w")
    assert rest is not None
    assert rest.rest.ends[Role.REPORTS] == JOB.start_offsets[Role.REPORTS]
    assert rest.words["deployment"] == JOB.deployment.hex()
    assert _of_devices() is None


def _of_devices() -> RestingJob | None:
    from tests.support.device_world import device_job

    job: DeployedJob = device_job()
    return first_rest(job, "shuffle", "w")
