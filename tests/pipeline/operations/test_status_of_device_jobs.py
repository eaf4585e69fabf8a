"""Test the status of jobs whose devices report through collectors, without producers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.operations.status.facts import (
    CollectorStatus,
    JobStatus,
    OpenWindowStatus,
    StageStatus,
    WorkerStatus,
)
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.serve.pipeline_view import lag_seconds
from dpstream.pipeline.stages.topic_uses import stages_of
from tests.support.commands import Commands
from tests.support.device_jobs import BEGIN, device_job
from tests.support.memory_cluster import use_memory_cluster
from tests.support.small_run import job_text

JOB = device_job()
UP = CollectorStatus("1a2b3c4d" * 4, 1.0, 70, 60, {"late": 2, "malformed": 8}, 3, 12.5)
WINDOWS = (
    OpenWindowStatus(1, None, ("collector 1a2b3c4d",), devices=40, grace_left=12.5),
    OpenWindowStatus(2, None, (), devices=7, grace_left=30.0),
    OpenWindowStatus(3, None, ("collector 1a2b3c4d",), devices=0),
)
FILE = """\
name: phones
protocol: future_rand
parameters: {epsilon: 1, max_changes: 2}
epochs: {count: 16, start: 2026-01-01, length: P1D}
devices: {}
"""


def status_of(*collectors: CollectorStatus, waiting: float | None = None, **more: Any) -> JobStatus:
    counted = ("late_reports", "unusable_reports", "contradicting_reports")
    shuffle = {name: more.pop(name) for name in counted if name in more}

    def stage(name: str) -> StageStatus:
        worker = WorkerStatus(name, "w1", 0.5, (0,), 1.0, None, (), 0)
        if name != "shuffle":
            return StageStatus(name, (worker,), 0, None)
        worker = replace(worker, windows=WINDOWS, open_windows=3, **shuffle)
        return StageStatus(name, (worker,), 9, waiting)

    stages = tuple(map(stage, stages_of(JOB)))
    return JobStatus(
        JOB.name, JOB.deployment.hex(), BEGIN, JOB.last_epoch, None, stages, {},
        producers=None, collectors=collectors, **more,
    )  # fmt: skip


def test_rate_of_reports_is_computed_from_the_last_two_heartbeats() -> None:
    heard = Heartbeats(JOB)
    for moment, stored in ((0, 100), (2_000, 130)):
        body = {
            "deployment": JOB.deployment.hex(),
            "stage": "collect",
            "worker": "ab" * 16,
            "waiting": 1,
            "counts": {"received": stored, "reports": stored, "rejected late": 4},
        }
        value = json.dumps(body).encode()
        heard.apply(LogRecord(moment, value, moment, b"collect/ab"))
        (collector,) = heard.collectors(3_000)
        assert collector.stored_per_second == (15.0 if moment else None)
    assert (collector.acknowledged, collector.rejected, collector.waiting) == (130, {"late": 4}, 1)


def test_reports_of_an_open_window_do_not_count_as_lag() -> None:
    assert lag_seconds(JOB, status_of(UP, waiting=86_400.0)) == 0
    month = 32 * 86_400.0
    assert lag_seconds(JOB, status_of(UP, waiting=month)) == month


@pytest.fixture
def dpstream(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("phones.yaml").write_text(FILE)
    Path("small.yaml").write_text(job_text())
    Path("rows.csv").write_text("user,epoch,value\nada,1,1\n")
    use_memory_cluster(monkeypatch)
    return Commands(capsys)


def test_producer_commands_are_rejected_for_device_jobs(dpstream: Commands) -> None:
    assert dpstream("deploy", "phones.yaml").code == 0
    for command in (
        ("producers", "phones"),
        ("producers", "phones", "--retire", "gateway"),
        ("produce", "phones", "--input", "rows.csv"),
        ("produce", "phones", "--input", "-"),
        ("up", "phones.yaml", "--input", "rows.csv"),
    ):
        rejected = dpstream(*command)
        assert (rejected.code, rejected.output) == (2, ""), command
        (sentence,) = rejected.errors.splitlines()
        assert "devices of job phones report directly" in sentence
        assert "'dpstream collect' receives their reports" in sentence
