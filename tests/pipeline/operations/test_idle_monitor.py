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
from dpstream.pipeline.kafka.workers.idle_note import NOTE, IdleNote, idle_heartbeat
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.operations.supervisor.idle_monitor import (
    IdleJob,
    IdleMonitor,
    initial_idle_job,
    noted_idle_job,
)
from dpstream.pipeline.operations.supervisor.target_tasks import Task
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


def test_saved_idle_state_applies_only_to_the_same_job_version(folder: Path) -> None:
    assert noted_idle_job(JOB, VERSION, "publish", "w") is None
    IdleNote(ENDS, VERSION.hex(), idle_heartbeat(stage="publish")).write(folder, "metrics 1")
    idle_job = noted_idle_job(JOB, VERSION, "publish", "w")
    assert idle_job is not None
    assert (idle_job.condition, idle_job.metrics, idle_job.words["idle"]) == (
        ENDS,
        "metrics 1",
        True,
    )
    assert idle_job.until == pytest.approx(time.monotonic() + 86_400, abs=60)
    assert noted_idle_job(JOB, b"another", "publish", "w") is None
    (folder / NOTE).write_text("{")
    assert noted_idle_job(JOB, VERSION, "publish", "w") is None


class Broker:
    def __init__(self) -> None:
        self.topics: dict[str, tuple[int, ...]] = {
            JOB.topic(Role.PARTIALS): (3,),
            JOB.topic(Role.MANIFESTS): (4,),
            JOB.topic(Role.STATUS): (9,),
        }
        self.reported: list[dict[str, Any]] = []

    @property
    def producer(self) -> Broker:
        return self

    def send(self, topic: str, value: bytes, *, key: bytes, partition: int) -> None:
        assert (topic, key, partition) == (JOB.topic(Role.STATUS), b"publish/w", 0)
        self.reported.append(json.loads(value))

    def ends(self, partitions: dict[str, int]) -> dict[str, tuple[int, ...]]:
        status = {JOB.topic(Role.STATUS): 1}
        woken_by = {JOB.topic(Role.PARTIALS): 1, JOB.topic(Role.MANIFESTS): 1}
        assert partitions in (status, woken_by)
        return {topic: ends for topic, ends in self.topics.items() if topic in partitions}


def idle(idle_job: IdleCondition = ENDS, seconds: float = math.inf) -> IdleJob:
    return IdleJob(JOB, idle_job, {"idle": True}, "", time.monotonic() + seconds)


@pytest.mark.parametrize(
    "change",
    [
        {JOB.topic(Role.MANIFESTS): (5,)},
        {JOB.topic(Role.PARTIALS): (2,)},
        {JOB.topic(Role.PARTIALS): ()},
    ],
    ids=["grown", "recreated", "deleted"],
)
def test_changed_end_offset_wakes_a_job_once(
    change: dict[str, tuple[int, ...]],
) -> None:
    broker, woken = Broker(), list[str]()
    watch = IdleMonitor("publish", "w", woken.append)
    watch.add(idle(), reported=False)
    for _ in range(3):
        watch.look(cast(Cluster, broker))
    assert woken == []
    assert len(broker.reported) == 1, "the heartbeat is sent once a minute"
    broker.topics |= change
    for _ in range(2):
        watch.look(cast(Cluster, broker))
    assert woken == [JOB.name]


def test_expired_timer_wakes_a_job_unless_the_job_was_removed() -> None:
    broker, woken = Broker(), list[str]()
    watch = IdleMonitor("publish", "w", woken.append)
    watch.add(idle(seconds=-1.0), reported=True)
    watch.look(cast(Cluster, broker))
    assert woken == [JOB.name]
    assert broker.reported == [], "its worker has just reported it"
    watch.add(idle(seconds=-1.0), reported=True)
    watch.keep(())
    watch.look(cast(Cluster, broker))
    assert woken == [JOB.name]


def test_failed_heartbeat_of_an_idle_job_does_not_block_others() -> None:
    broker, woken = Broker(), list[str]()
    del broker.topics[JOB.topic(Role.STATUS)]
    watch = IdleMonitor("publish", "w", woken.append)
    watch.add(idle(), reported=False)
    watch.look(cast(Cluster, broker))
    assert broker.reported == []


@pytest.mark.parametrize(("age", "up"), [(100, True), (200, False)])
def test_idle_worker_is_up_while_its_heartbeats_arrive(age: int, up: bool) -> None:
    heartbeats = Heartbeats(JOB)
    words = idle_heartbeat(deployment=JOB.deployment.hex(), stage="publish", worker="w")
    record = LogRecord(0, json.dumps(words).encode(), 1000, b"publish/w")
    heartbeats.apply(record)
    (worker,) = heartbeats.workers(1000 + 1000 * age)
    assert (worker.idle, worker.up) == (True, up)


def test_job_that_has_never_run_is_idle_until_records_arrive() -> None:
    idle_job = initial_idle_job(JOB, "shuffle", "w")
    assert idle_job is not None
    assert idle_job.condition.ends[Role.REPORTS] == JOB.start_offsets[Role.REPORTS]
    assert idle_job.words["deployment"] == JOB.deployment.hex()
    assert _of_devices() is None


def _of_devices() -> IdleJob | None:
    from tests.support.device_world import device_job

    job: DeployedJob = device_job()
    return initial_idle_job(job, "shuffle", "w")
