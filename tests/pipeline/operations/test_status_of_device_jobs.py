"""What is said of jobs whose devices report for themselves: of collectors, never of producers."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.cli.status_lines import status_lines
from dpstream.pipeline.operations.status import (
    CollectorStatus,
    JobStatus,
    OpenWindow,
    StageStatus,
    WorkerStatus,
    find_notes,
    find_problems,
    stages_of,
)
from dpstream.pipeline.operations.status.heartbeats import Heartbeats
from dpstream.pipeline.serve.pipeline_view import behind, pipeline_json
from tests.support.commands import Commands
from tests.support.device_jobs import BEGIN, DAY, device_job
from tests.support.memory_cluster import use_memory_cluster
from tests.support.small_run import job_text

NOW = BEGIN + DAY
JOB = device_job()
ALIVE = CollectorStatus("1a2b3c4d" * 4, 1.0, 70, 60, {"late": 2, "malformed": 8}, 3, 12.5)
SILENT = CollectorStatus("5e6f7081" * 4, 95.0, 5, 5, {}, 0, 4.0)
WINDOWS = (
    OpenWindow(1, None, ("collector 1a2b3c4d",), devices=40, grace_left=12.5),
    OpenWindow(2, None, (), devices=7, grace_left=30.0),
    OpenWindow(3, None, ("collector 1a2b3c4d",), devices=0),
)
FILE = """\
name: phones
protocol: future_rand
parameters: {epsilon: 1, changes: 2}
epochs: {count: 16, start: 2026-01-01, length: P1D}
devices: {}
"""


def status_of(*collectors: CollectorStatus, waiting: float | None = None, **more: Any) -> JobStatus:
    """Of a job whose workers are alive."""
    shuffle = {
        name: more.pop(name) for name in ("late_reports", "unusable_reports") if name in more
    }

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


def lines_of(status: JobStatus) -> list[str]:
    console = Console(width=100, file=io.StringIO(), record=True)
    for line in status_lines(status, NOW):
        console.print(line)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_a_rate_is_that_between_the_last_two_heartbeats() -> None:
    heard = Heartbeats(JOB.deployment)
    for moment, stored in ((0, 100), (2_000, 130)):
        body = {
            "deployment": JOB.deployment.hex(),
            "stage": "collect",
            "worker": "ab" * 16,
            "waiting": 1,
            "counts": {"received": stored, "reports": stored, "refused late": 4},
        }
        value = json.dumps(body).encode()
        heard.apply(LogRecord(moment, value, moment, b"collect/ab"))
        (collector,) = heard.collectors(3_000)
        assert collector.stored_per_second == (15.0 if moment else None)
    assert (collector.acknowledged, collector.refused, collector.waiting) == (130, {"late": 4}, 1)


def test_the_screen_has_collectors_and_no_producers() -> None:
    lines = lines_of(status_of(ALIVE, SILENT))
    assert "windows: ; collectors: 1" in lines
    assert "1a2b3c4d 1.0 s ago 12.5 60 3 2 late, 8 malformed" in lines
    assert "5e6f7081 silent 1 min 35 s - 5 - none" in lines
    assert "epoch 1 40 collector 1a2b3c4d 12 s" in lines
    assert "epoch 2 7 the end of its grace period 30 s" in lines
    assert "epoch 3 0 the end of the epoch its time" in lines
    nobody = lines_of(status_of())
    assert "windows: ; collectors: 0" in nobody
    assert not any("producer" in line for line in [*lines, *nobody])


def test_problems_lead_to_collectors_and_the_app() -> None:
    status = status_of(ALIVE, late_reports=1_500, withheld=3)
    withheld, late = find_problems(JOB, status)
    assert "3 epochs: fewer than" in withheld
    assert "whether their app reports" in withheld
    assert late.startswith("1,500 reports came after")
    assert "see that they reach Kafka" in late
    assert "producers" not in withheld + late
    for nobody in (status_of(), status_of(SILENT)):
        (problem,) = find_problems(JOB, nobody)
        assert "no collector is running" in problem


def test_what_is_of_no_use_is_good_to_know_and_needs_nobody() -> None:
    status = status_of(ALIVE, unusable_reports=1_234)
    (note,) = find_notes(JOB, status)
    assert note.startswith("1,234 reports were of no use, and not counted")
    assert list(find_problems(JOB, status)) == []
    (note,) = find_notes(JOB, status_of(ALIVE, unusable_reports=1))
    assert note.startswith("1 report was")
    assert list(find_notes(JOB, status_of(ALIVE))) == []


def test_the_page_is_told_of_collectors() -> None:
    body = pipeline_json(JOB, status_of(ALIVE, SILENT, unusable_reports=6), NOW)
    assert body["producers"] is None
    assert body["unusable_reports"] == 6
    assert body["collectors"] == [
        {
            "name": "1a2b3c4d",
            "alive": True,
            "age": 1.0,
            "stored": 60,
            "stored_per_second": 12.5,
            "waiting": 3,
            "refused": {"late": 2, "malformed": 8},
        },
        {
            "name": "5e6f7081",
            "alive": False,
            "age": 95.0,
            "stored": 5,
            "stored_per_second": None,
            "waiting": None,
            "refused": {},
        },
    ]
    assert pipeline_json(JOB, status_of(), NOW)["collectors"] == []


def test_reports_of_a_window_that_is_open_are_not_behind() -> None:
    assert behind(JOB, status_of(ALIVE, waiting=86_400.0)) == 0
    month = 32 * 86_400.0
    assert behind(JOB, status_of(ALIVE, waiting=month)) == month


def test_who_has_to_be_trusted_is_said_of_collectors() -> None:
    trusted = device_job(protocol="shuffled_counts").guarantee().trust
    assert trusted.endswith(
        "; and the collectors, which can read every report and see who sends it"
    )
    assert "collectors" not in JOB.guarantee().trust


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


def test_verbs_of_producers_are_refused_with_what_to_do(dpstream: Commands) -> None:
    assert dpstream("deploy", "phones.yaml").code == 0
    for command in (
        ("producers", "phones"),
        ("producers", "phones", "--retire", "gateway"),
        ("produce", "phones", "--input", "rows.csv"),
        ("produce", "phones", "--input", "-"),
        ("up", "phones.yaml", "--input", "rows.csv"),
    ):
        refused = dpstream(*command)
        assert (refused.code, refused.output) == (2, ""), command
        (sentence,) = refused.errors.splitlines()
        assert "devices of job phones report for themselves" in sentence
        assert "dpstream collect takes their reports" in sentence


def test_no_verb_tells_of_producers(dpstream: Commands) -> None:
    assert dpstream("deploy", "phones.yaml").code == 0
    body = json.loads(dpstream("status", "phones", "--json").output)
    assert (body["producers"], body["collectors"], body["unusable_reports"]) == (None, [], 0)
    for verb, said in (
        ("status", "collectors: 0"),
        ("pause", "what collectors write waits for dpstream resume phones"),
        ("undeploy", "its topics stay; stop its workers\n"),
    ):
        output = dpstream(verb, "phones", *(["--yes"] if verb == "undeploy" else [])).output
        assert said in output
        assert "producers" not in output
    assert dpstream("deploy", "small.yaml").code == 0
    assert "what producers write" in dpstream("pause", "small").output
    assert "stop its workers and producers" in dpstream("undeploy", "small", "--yes").output
