"""Test that ``dpstream up`` reads input before starting, and passes it to the producer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.up.job_run import JobInput, JobRun, UpSettings
from tests.support.small_run import job_text


class Commands:
    def __init__(self) -> None:
        self.commands: dict[str, list[str]] = {}

    def start(self, name: str, command: list[str], *arguments: Any, **options: Any) -> None:
        self.commands[name] = command


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Write a job, an input of three users, and a user list of four with two of these users."""
    job, rows, user_list = tmp_path / "job.yaml", tmp_path / "rows.csv", tmp_path / "user list"
    job.write_text(job_text())
    rows.write_text("user,epoch,value\nann,1,1\nbob,2,1\neve,3,1\n")
    user_list.write_text("ann\nbob\ncleo\ndan\n")
    return job, rows, user_list


@pytest.mark.parametrize("chosen", [True, False])
def test_producer_gets_the_user_list_and_last_epoch_of_the_run(
    files: tuple[Path, Path, Path], chosen: bool
) -> None:
    job, rows, user_list = files
    settings = UpSettings(
        (job,), rows, users=user_list if chosen else None, to_epoch=5 if chosen else None
    )
    given = JobInput.load(job, settings, print)
    run = JobRun(given, lambda run, event: None, print, lambda: None)
    run._connection = Connection(("memory:9092",))
    workers = Commands()
    run.take(deploy_job(given.job, deployed_at=0), cast(RestartedProcesses, workers))
    command = workers.commands["produce"]
    options = {one: other for one, other in pairwise(command) if one.startswith("-")}
    assert options["--input"] == str(rows)
    assert options.get("--users") == (str(user_list) if chosen else None)
    assert options.get("--to-epoch") == ("5" if chosen else None)


def test_adapted_input_section_is_deployed_and_used_to_read_rows(
    files: tuple[Path, Path, Path],
) -> None:
    job, rows, _ = files
    rows.write_text(rows.read_text().replace(",", ";"))
    form = InputFormat(separator=";")
    adapted = UpSettings((job,), rows, adapted=lambda job: job.model_copy(update={"input": form}))
    given = JobInput.load(job, adapted, print)
    assert len(given.values.users) == 3
    assert given.job.input == form
