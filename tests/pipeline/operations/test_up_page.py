"""Test the live page of a run: served once all jobs are deployed, and printed when ready."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from dpstream.pipeline.devices.ground_truths import CountedGroundTruths
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.up import run_up
from dpstream.pipeline.operations.up.job_run import JobInput, UpSettings
from dpstream.pipeline.operations.up.screen import Screen
from tests.support.small_run import job_text


class Pages:
    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def start(self, name: str, command: list[str], *arguments: Any, **options: Any) -> None:
        self.commands.append(command[command.index("serve") :])


def test_page_is_served_once_and_announced_when_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    monkeypatch.setattr(run_up, "Forks", lambda *arguments: SimpleNamespace(wait=None))
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    rows, job = tmp_path / "rows.csv", parse_job(job_text())
    settings = UpSettings((tmp_path / "job.yaml",), rows, page=True, browser=True)
    ground_truths = CountedGroundTruths(np.zeros(job.epochs.count, np.int64))
    given = JobInput(job, settings, cast(ValueLog, None), ground_truths)
    console = Console(file=io.StringIO(), record=True, width=200)
    run = run_up._Run(settings, [given], Screen(console), Signals())
    run._connection = Connection(("memory:9092",))
    pages = Pages()
    run._serve_page(cast(RestartedProcesses, pages))
    assert pages.commands == [], "nothing is deployed"
    run._jobs[0].deployed = deploy_job(job, deployed_at=0)
    for _ in range(2):
        run._serve_page(cast(RestartedProcesses, pages))
    (command,) = pages.commands
    assert command[:4] == ["serve", job.name, "--ground-truth", f"{job.name}={rows}"]
    for line in (
        "expected the loss of the whole stream in addition exactly if it differs",
        *[("live page: http://127.0.0.1:8765/")] * 2,
    ):
        run._show_page(line)
    assert opened == [f"http://127.0.0.1:8765/?job={job.name}"]
    assert console.export_text() == f"watch the jobs in a browser: {opened[0]}\n"
