"""What ``dpstream up`` reads before it starts anything, and hands on to the producer."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.input_forms import InputForm
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.up import job_run
from dpstream.pipeline.operations.up.job_run import JobInput, JobRun
from dpstream.pipeline.operations.up.observation import Seen
from tests.support.small_run import EPOCHS, job_text


class Commands:
    """In place of `RestartedProcesses`: notes what it is asked to start."""

    def __init__(self) -> None:
        self.commands: dict[str, list[str]] = {}

    def start(self, name: str, command: list[str], *arguments: Any, **options: Any) -> None:
        self.commands[name] = command


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Job, input and roster: three users with rows, of whom two are on a roster of four."""
    job, rows, roster = tmp_path / "job.yaml", tmp_path / "rows.csv", tmp_path / "roster"
    job.write_text(job_text())
    rows.write_text("user,epoch,value\nann,1,1\nbob,2,1\neve,3,1\n")
    roster.write_text("ann\nbob\ncleo\ndan\n")
    return job, rows, roster


def load(
    job: Path, rows: Path, roster: Path | None, to_epoch: int | None = None
) -> tuple[JobInput, list[str]]:
    said: list[str] = []
    given = JobInput.load(
        job, rows, roster=roster, to_epoch=to_epoch, skip_bad_rows=False, say=said.append
    )
    return given, said


def counted(given: JobInput) -> list[int]:
    truths = given.truths
    found = [truths.of(epoch, None) for epoch in range(1, truths.last_epoch + 1)]
    return [int(cast(Any, each)[0]) for each in found]


def test_the_users_are_those_of_the_roster_or_those_with_a_row(
    files: tuple[Path, Path, Path],
) -> None:
    job, rows, roster = files
    given, said = load(job, rows, roster)
    assert (given.users, counted(given)) == (4, [1] + [2] * (EPOCHS - 1))
    assert said == [
        f"{rows}: not on the roster: 1 user with rows, which are not used (the first: line 4, user "
        "'eve')",
        "4 users on the roster; that they are on it is public",
    ]
    given, said = load(job, rows, None)
    assert (given.users, counted(given)[2]) == (3, 3)
    assert said == ["3 users with a row in the input; that they have one is public"]


def test_a_job_that_renews_needs_to_know_how_far_the_input_is_complete(
    files: tuple[Path, Path, Path],
) -> None:
    job, rows, _ = files
    job.write_text(job_text(more=", renew: true"))
    with pytest.raises(InputError, match="renews: give --to-epoch"):
        load(job, rows, None)
    given, _ = load(job, rows, None, 2 * EPOCHS)
    assert given.truths.last_epoch == 2 * EPOCHS
    with pytest.raises(InputError, match="--to-epoch is 0, must be at least 1"):
        load(job, rows, None, 0)


@pytest.mark.parametrize("chosen", [True, False])
def test_the_producer_is_given_the_same_roster_and_last_epoch(
    files: tuple[Path, Path, Path], chosen: bool
) -> None:
    job, rows, roster = files
    given, _ = load(job, rows, roster if chosen else None, 5 if chosen else None)
    run = JobRun(given, None, lambda run, event: None, lambda sentence: None, lambda: None)
    run._connection = Connection(("memory:9092",))
    workers = Commands()
    run.take(deploy_job(given.job, deployed_at=0), cast(RestartedProcesses, workers))
    command = workers.commands["produce"]
    options = {one: other for one, other in pairwise(command) if one.startswith("-")}
    assert options["--input"] == str(rows)
    assert options.get("--users") == (str(roster) if chosen else None)
    assert options.get("--to-epoch") == ("5" if chosen else None)


def test_processes_are_started_when_they_can_be(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, rows, _ = files
    given, _ = load(job, rows, None, None)
    seen: list[object] = []
    deployed = deploy_job(given.job, deployed_at=0)

    def begin(*of: object) -> DeployedJob:
        seen.append("deployed")
        return deployed

    def observe(*of: object) -> Generator[list[Seen], None, None]:
        yield from ()

    monkeypatch.setattr(job_run, "begin", begin)
    monkeypatch.setattr(job_run, "observe", observe)
    run = JobRun(
        given,
        None,
        lambda run, event: seen.append(event),
        lambda sentence: None,
        lambda: seen.append("waited"),
    )
    run.begin(Connection(("memory:9092",)))
    assert run._observer is not None
    run._observer.join()
    assert seen == ["deployed", "waited", deployed]


def test_the_job_is_deployed_as_one_that_says_how_its_input_is_written(
    files: tuple[Path, Path, Path],
) -> None:
    job, rows, _ = files
    rows.write_text(rows.read_text().replace(",", ";"))
    form = InputForm(separator=";")
    given = JobInput.load(
        job,
        rows,
        roster=None,
        to_epoch=None,
        skip_bad_rows=False,
        say=lambda sentence: None,
        form_of=lambda job: form,
    )
    assert given.users == 3
    assert given.job.input == form
