"""Test that ``dpstream up`` asks before it ends jobs or charges users again."""

from __future__ import annotations

import io
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from dpstream.pipeline.cli import up as up_command
from dpstream.pipeline.devices.ground_truths import CountedGroundTruths
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.losses import UnconfirmedLossError, check_losses
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.status.collection import gather_status
from dpstream.pipeline.operations.up import run_up
from dpstream.pipeline.operations.up.job_run import JobInput, JobRun, UpSettings
from dpstream.pipeline.operations.up.screen import Screen
from tests.support.commands import Commands
from tests.support.live_page import deploy_text, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import count
from tests.support.small_run import job_text

LOSSES = ("job one would end", "population two would be charged again")


@pytest.fixture
def cluster() -> Cluster:
    return cast(Cluster, MemoryCluster())


def test_deploying_a_new_job_is_not_reported_as_a_loss(cluster: Cluster) -> None:
    check_losses(cluster, [parse_job(job_text())])


def test_losses_of_all_jobs_are_listed_before_any_job_is_changed(cluster: Cluster) -> None:
    job = parse_job(job_text())
    first = deploy(cluster, job, deployment=bytes([1] * 16), now=1)
    other = parse_job(job_text().replace("name: small", "name: other\npopulation: small"))
    new = parse_job(job_text().replace("name: small", "name: new"))
    with pytest.raises(UnconfirmedLossError) as caught:
        check_losses(cluster, [job, other, new])
    ended, charged = caught.value.losses
    assert ended == (
        "deployment 01010101 of job small would end: it has published nothing yet; "
        "population small would be charged again: epsilon 2, 4 in total"
    )
    assert charged == "population small would be charged again: epsilon 2, 4 in total"
    assert read_jobs(cluster).jobs == {"small": first}


@pytest.mark.parametrize(("epochs", "more"), [(12, ""), (12, ", renew: true"), (9, "")])
def test_job_that_could_continue_is_drained_when_its_workers_end(epochs: int, more: str) -> None:
    cluster = MemoryCluster()
    job = deploy_text(cluster, job_text(more=more))
    for epoch in range(1, epochs + 1):
        publish(cluster, job, epoch, count(1.0))
    truths = CountedGroundTruths(np.zeros(epochs, np.int64))
    given = JobInput(job, UpSettings((), Path()), cast(ValueLog, None), truths)
    ended: list[object] = []
    run = JobRun(given, lambda run, event: ended.append(event), print, lambda: None)
    run._read(cast(Cluster, cluster), job)
    assert len(ended) == epochs + 1
    phase = read_jobs(cast(Cluster, cluster)).phase(job.name)
    assert phase is (Phase.RUNNING if epochs == job.last_epoch else Phase.DRAINED)
    status = gather_status(cast(Cluster, cluster), job, 1, phase)
    assert not [issue for issue in status.issues if "No worker" in issue]


@pytest.mark.parametrize(("deployed", "agreed"), [(True, False), (True, True), (False, False)])
def test_job_that_causes_losses_starts_only_if_the_user_agrees(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, deployed: bool, agreed: bool
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(JobRun, "begin", lambda self, connection: begun.append(self.job.name))
    monkeypatch.setattr(run_up, "Forks", lambda *arguments: SimpleNamespace(wait=None))
    monkeypatch.setattr(run_up, "Cluster", lambda connection: nullcontext(cluster))
    job, path = parse_job(job_text()), tmp_path / "rows"
    if deployed:
        deploy(cluster, job, deployment=bytes([1] * 16), now=1)
    settings = UpSettings((path,), path, agreed=agreed)
    ground_truths = CountedGroundTruths(np.zeros(job.epochs.count, np.int64))
    given = JobInput(job, settings, cast(ValueLog, None), ground_truths)
    run = run_up._Run(settings, [given], Screen(Console()), Signals())
    with suppress(UnconfirmedLossError):
        run._connect(Connection(("memory:9092",)))
    assert begun == ([] if deployed and not agreed else ["small"])


class Runs:
    def __init__(self) -> None:
        self.agreed: list[bool] = []

    def __call__(self, settings: UpSettings, *others: Any) -> None:
        self.agreed.append(settings.agreed)
        if not settings.agreed:
            raise UnconfirmedLossError(LOSSES)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdin", "options", "code", "agreed", "messages"),
    [
        (Terminal("y\n"), (), 0, [False, True], LOSSES),
        (Terminal("n\n"), (), 1, [False], (*LOSSES, "nothing is deployed or charged")),
        (
            io.StringIO("y\n"),
            (),
            2,
            [False],
            (*LOSSES, "confirmation requires a terminal: add --yes"),
        ),
        (io.StringIO(), ("--yes",), 0, [True], ()),
    ],
)
def test_up_command_continues_only_if_the_user_agrees(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stdin: io.StringIO,
    options: tuple[str, ...],
    code: int,
    agreed: list[bool],
    messages: tuple[str, ...],
) -> None:
    runs = Runs()
    monkeypatch.setattr(up_command, "run_up", runs)
    monkeypatch.setattr("sys.stdin", stdin)
    result = Commands(capsys)("up", tmp_path / "job.yaml", "--input", tmp_path / "rows", *options)
    assert (result.code, runs.agreed) == (code, agreed)
    assert all(sentence in result.errors for sentence in messages)
    assert messages or not result.errors


def test_demo_requires_no_confirmation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs()
    monkeypatch.setattr(up_command, "run_up", runs)
    assert Commands(capsys)("demo", "--output", tmp_path).code == 0
    assert runs.agreed == [True]
