"""Test up: imports before forking, inputs, losses to confirm, the page, and results."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from dpstream.aggregators.estimate import OUTSIDE
from dpstream.pipeline.cli import up as up_command
from dpstream.pipeline.cli.up import _write
from dpstream.pipeline.demo.compared_runs import compared, write_comparison
from dpstream.pipeline.devices.ground_truths import CountedGroundTruths
from dpstream.pipeline.devices.item_log import ValueLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.input_formats import InputFormat
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.operations.losses import UnconfirmedLossError, check_losses
from dpstream.pipeline.operations.restarted_processes import RestartedProcesses
from dpstream.pipeline.operations.signals import Signals
from dpstream.pipeline.operations.status.collection import gather_status
from dpstream.pipeline.operations.up import run_up
from dpstream.pipeline.operations.up.job_run import JobInput, JobRun, UpSettings
from dpstream.pipeline.operations.up.outcome import Outcome, Row, next_steps, summary
from dpstream.pipeline.operations.up.run_up import MODULES
from dpstream.pipeline.operations.up.screen import Screen, ScreenState, line_of
from dpstream.pipeline.results.expected_errors import predicted_rmse
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.guarantee import RollingGuarantee
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.live_page import deploy_text, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import count
from tests.support.small_run import EPOCHS, USERS, job_text, run_small_job

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
def test_job_with_remaining_epochs_is_drained_when_its_workers_end(epochs: int, more: str) -> None:
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
    settings = UpSettings(
        (tmp_path / "job.yaml",), rows, page=True, browser=True, skip_bad_rows=True, users=tmp_path
    )
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
    assert command[4:7] == ["--skip-bad-rows", "--users", str(tmp_path)]
    for line in (
        "expected the loss of the whole stream in addition exactly if it differs",
        *[("live page: http://127.0.0.1:8765/")] * 2,
    ):
        run._show_page(line)
    assert opened == [f"http://127.0.0.1:8765/?job={job.name}"]
    assert console.export_text() == f"watch the jobs in a browser: {opened[0]}\n"


class StartedCommands:
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
    workers = StartedCommands()
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


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = run_small_job(tmp_path_factory.mktemp("run"))
    ground_truths = CountedGroundTruths(run.ground_truth)
    rows = tuple(
        Row.of(run.job, EstimateRecord.from_bytes(value), ground_truths)
        for role, value in run.records
        if role is Role.ESTIMATES
    )
    return Outcome(run.job, rows, USERS, seconds=2.5, ground_truths=ground_truths)


def without_estimate(row: Row) -> Row:
    return replace(row, record=replace(row.record, estimate=None))


def view_of(job: DeployedJob, rows: tuple[Row, ...], activity: str = "") -> ScreenState:
    return ScreenState(job, activity, rows, EPOCHS)


def test_every_epoch_is_printed_with_its_ground_truth(outcome: Outcome) -> None:
    rows = outcome.rows
    assert [row.epoch for row in rows] == list(range(1, EPOCHS + 1))
    assert rows[-1].headline.ground_truth == USERS
    assert all(row.estimate.value is not None and not row.notes for row in rows)
    # The numbers shown are clipped: next to them, the flag would look like a ground truth
    # outside the interval.
    assert any(OUTSIDE in row.estimate.flags for row in rows)


def test_rmse_compares_estimates_with_the_ground_truth(outcome: Outcome) -> None:
    moved = [
        replace(
            row, ground_truths=np.round(row.intervals[0] - 10 * (-1) ** row.epoch).astype(np.int64)
        )
        for row in outcome.rows
    ]
    missing = without_estimate(moved[0])
    result = replace(outcome, rows=(missing, *moved[1:]))
    assert result.rmse == pytest.approx(10, abs=0.5)
    assert replace(outcome, rows=(missing,)).rmse is None


def test_infinite_intervals_are_excluded_from_coverage(outcome: Outcome) -> None:
    first = outcome.rows[0]
    low = first.estimate.ci95_low
    assert low is not None
    outside = replace(first, ground_truths=np.array([int(low) - 10]))
    flagged = replace(
        outside, record=replace(outside.record, estimate=replace(outside.estimate, flags=("gap",)))
    )
    rows = (outside, flagged, without_estimate(outside))
    assert replace(outcome, rows=rows).covered == (0, 1)


def test_screen_prints_each_activity_and_epoch_once(outcome: Outcome) -> None:
    console = Console(file=io.StringIO(), width=60, record=True)
    with Screen(console) as screen:
        for last, activity in ((0, "fetching: 1 of 2"), (0, "fetching: 2 of 2"), (5, ""), (12, "")):
            screen.show(view_of(outcome.job, outcome.rows[:last], activity))
    first, *epochs = console.export_text().splitlines()
    assert first == "fetching: 1 of 2"
    assert epochs == [line_of(row, outcome.job) for row in outcome.rows]
    assert epochs[-1].startswith("epoch 12  estimate ")
    assert f"ground truth (not private) {USERS}  users {USERS}" in epochs[-1]


def test_terminal_shows_progress(outcome: Outcome) -> None:
    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)
    with Screen(console) as screen:
        screen.show(view_of(outcome.job, outcome.rows[:3]))
    assert outcome.job.position_of(3, EPOCHS) in console.export_text()


def test_comparison_of_runs_lists_every_run(outcome: Outcome, tmp_path: Path) -> None:
    (row, _) = compared([outcome, outcome])
    assert row[0] == "future_rand"
    assert row[2] == f"{outcome.rmse:,.0f}"
    write_comparison([outcome, outcome], tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def test_results_include_ground_truth_and_plot(outcome: Outcome, tmp_path: Path) -> None:
    files = _write(outcome, tmp_path, alone=True)
    with files["estimates"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ground_truth_not_private"]) for row in rows] == [
        float(row.ground_truths[0]) for row in outcome.rows if row.ground_truths is not None
    ]
    assert files["plot"].read_bytes().startswith(b"\x89PNG")


def test_predicted_error_uses_the_estimated_share_of_users(tmp_path: Path) -> None:
    requested = "protocol: sampled_response\nparameters: {epsilon: 4, reports: 1}"
    run = run_small_job(tmp_path, requested=f"{requested}\nshuffle: {{minimum: 5}}")
    ground_truths = CountedGroundTruths(run.ground_truth)
    values = [value for role, value in run.records if role is Role.ESTIMATES]
    rows = tuple(
        Row.of(run.job, EstimateRecord.from_bytes(value), ground_truths) for value in values
    )
    found = Outcome(run.job, rows, USERS, seconds=2.5, ground_truths=ground_truths)
    # Half of the users have the value on average, not a tenth.
    assert found.share == pytest.approx(0.54, abs=0.15)
    assert found.predicted_rmse == predicted_rmse(run.job, USERS, found.share)
    assert (found.predicted_rmse or 0.0) > 1.2 * (predicted_rmse(run.job, USERS) or 0.0)
    assert f"for the estimated share of {found.share:.0%}" in dict(summary(found))["predicted RMSE"]
    assert found.to_json()["predicted_share"] == found.share
    rolling = replace(found.job.guarantee, rolling=RollingGuarantee(6, 4.0))
    recurring = replace(found, job=found.job.model_copy(update={"guarantee": rolling}))
    stated = dict(summary(recurring))["guarantee"]
    assert "epsilon 4 for any 6 consecutive epochs, forever; trusted party: none" in stated


def test_next_steps_show_the_results_again_and_name_the_same_files() -> None:
    def steps(**options: Any) -> list[list[str]]:
        chosen = {"example": False, "recurring": False, "stages": ("shuffle",), **options}
        return [commands for _, commands in next_steps(Path("job.yaml"), "dpstream", **chosen)]

    again, _ = steps()
    assert again == ["dpstream serve", "dpstream estimates job.yaml"]
    again, own = steps(
        groups=" --by os,plan",
        rows=("--skip-bad-rows", "--users", "my users"),
        cluster=("--bootstrap-servers", "b:1"),
    )
    assert again == [
        "dpstream serve --bootstrap-servers b:1",
        "dpstream estimates job.yaml --by os,plan --bootstrap-servers b:1",
    ]
    assert "dpstream produce job.yaml --input FILE --skip-bad-rows --users 'my users'" in own


SLOW = {"scipy", "matplotlib", "bokeh", "pyarrow", "mpmath", "jgo"}
LOOKING = """
import gc, json, sys, threading
from importlib import import_module
for module in sys.argv[1:]:
    import_module(module)
from randomgen import AESCounter
print(json.dumps({
    "imported": sorted({name.partition(".")[0] for name in sys.modules}),
    "generators": sum(isinstance(one, AESCounter) for one in gc.get_objects()),
    "threads": threading.active_count(),
}))
"""


def test_imports_start_no_threads_before_forking() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOOKING, *MODULES],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    seen = json.loads(found.stdout)
    assert SLOW.isdisjoint(seen["imported"])
    assert {"faust", "aiokafka", "aiohttp", "pydantic"} <= set(seen["imported"])
    assert (seen["generators"], seen["threads"]) == (0, 1)
