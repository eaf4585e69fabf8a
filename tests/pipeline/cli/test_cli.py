"""Test the command line: output, streams and exit codes."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from pkgutil import iter_modules

import pytest
import typer
from kafka.errors import KafkaTimeoutError

from dpstream.pipeline import cli
from dpstream.pipeline.cli import main
from dpstream.pipeline.cli.command_errors import UsageProblem, explain, run_command
from dpstream.pipeline.cli.commands import build_command, installed_commands
from dpstream.pipeline.devices.producer import ProducerError
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.errors import INTERRUPTED
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.kafka.cluster import AccessError, ClusterError
from dpstream.pipeline.kafka.connection import ConnectionSettingsError, NoClusterError
from dpstream.pipeline.kafka.deployed_jobs import DeploymentError
from dpstream.pipeline.kafka.local_kafka import LocalKafkaError
from dpstream.pipeline.protocols.registry import OWN, module_of
from dpstream.pipeline.state import FolderInUse
from tests.support.commands import Commands

ROOT = Path(__file__).parents[3]
COMMANDS = [
    *(name for name in installed_commands() if name != "kafka"),
    *("kafka|start", "kafka|stop", "kafka|status", "kafka|logs"),
]


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(dpstream: Commands, command: str) -> None:
    words = command.split("|")
    result = dpstream(*words, "--help")
    assert result.code == 0
    assert f"Example: dpstream {' '.join(words)}" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "bool" not in result.output.lower(), "flags are shown as flags"


def test_list_of_commands_is_complete() -> None:
    kafka = build_command().commands["kafka"].loaded.commands  # type: ignore[attr-defined]
    assert {f"kafka|{name}" for name in kafka} == {name for name in COMMANDS if "|" in name}


def test_commands_of_removed_packages_are_omitted(
    dpstream: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = ("record", "serve")
    rest = {name for name, entry in installed_commands().items() if entry.module not in gone}
    modules = [each for each in iter_modules(cli.__path__) if each.name not in gone]
    monkeypatch.setattr("dpstream.pipeline.cli.commands.iter_modules", lambda path: modules)
    assert installed_commands().keys() == rest
    assert build_command().commands.keys() == installed_commands().keys()
    for line in (("up", "job.yaml", "--input", "rows.csv", "--page"), ("demo", "devices")):
        rejected = dpstream(*line)
        assert rejected.code == 2
        assert "dpstream serve, which is not part of this installation" in rejected.errors


def test_interrupt_during_imports_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only a few modules are imported before `main` can catch errors.
    program = "import sys; from dpstream.pipeline.cli import main; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert not {"typer", "numpy", "pydantic", "dpstream.pipeline.cli.command_errors"} & {*loaded}

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpstream.pipeline.cli._command", interrupted)
    assert main(["jobs"]) == INTERRUPTED == 130


def test_read_only_commands_do_not_import_heavy_modules() -> None:
    asking = [name for name in ("status", "estimates") if name in installed_commands()]
    program = (
        "import sys; from dpstream.pipeline.cli import main; "
        f"[main([name, '--help']) for name in {asking}]; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    assert {f"dpstream.pipeline.cli.{name}" for name in asking} <= set(modules)
    ours = (
        "planning",
        "simulation",
        "operations.deployments",
        "operations.up",
        "kafka.local_kafka",
    )
    protocols = (f"protocols.{module_of(protocol)}" for protocol in OWN)
    unused = (*(f"dpstream.pipeline.{each}" for each in (*ours, *protocols)), "psutil")
    assert not [each for each in modules if each.startswith(unused)]


def test_help_is_printed_without_arguments(dpstream: Commands) -> None:
    assert dpstream() == dpstream("--help")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plann x.yaml", "No such command 'plann'"),
        ("plan", "Missing argument 'JOBFILE'"),
        ("plan {job} --users 0", "--users"),
        (
            "plan {job} --target-error 0",
            "--target-error: got '0'; expected a share of the users, such as 2%",
        ),
        ("plan {job} --changes-histogram {missing}", "cannot read the histogram of changes"),
        (
            "plan {job} --changes-histogram a.csv --changes-from b.csv",
            "--changes-histogram and --changes-from are mutually exclusive",
        ),
        ("simulate {job}", "Missing option '--input'"),
        (
            "run sort small",
            "'sort' is not one of 'shuffle', 'instance-2', 'instance-3', 'instance-4', ",
        ),
        ("produce small --input x.csv --rate 0", "--rate: got 0; expected a number above 0"),
        ("produce small --input x.csv --name a/b", "--name: got 'a/b'; expected letters, digits"),
        ("list --bootstrap-servers here", "HOST:PORT"),
        ("list --kafka-config {missing}", "client.properties"),
    ],
)
def test_invalid_command_line_exits_with_2_and_a_hint(
    dpstream: Commands, job_file: Path, tmp_path: Path, arguments: str, message: str
) -> None:
    line = arguments.format(job=job_file, missing=tmp_path / "client.properties")
    result = dpstream(*line.split())
    assert result.code == 2
    assert message in result.errors
    assert result.errors.startswith("error: ")
    assert len(result.errors.splitlines()) <= 2
    assert result.output == ""


@pytest.mark.parametrize(
    "arguments",
    [
        "list",
        "status",
        "estimates small",
        "diff small large",
        "ledger small",
        "pause small",
        "produce small --input x.csv",
        "run shuffle small",
    ],
)
def test_missing_broker_error_suggests_the_start_command(
    dpstream: Commands, home: Path, arguments: str
) -> None:
    result = dpstream(*arguments.split())
    assert (result.code, result.output) == (1, "")
    assert "dpstream kafka start" in result.errors
    assert "--bootstrap-servers" in result.errors
    assert len(result.errors.splitlines()) == 1
    assert not home.exists()


def test_kafka_commands_report_that_no_local_broker_runs(dpstream: Commands, home: Path) -> None:
    result = dpstream("kafka", "status")
    assert (result.code, result.errors) == (1, "")
    assert "dpstream kafka start" in result.output

    result = dpstream("kafka", "status", "--json")
    assert result.code == 1
    assert json.loads(result.output)["running"] is False

    assert dpstream("kafka", "stop").output == "Kafka was not running\n"
    assert dpstream("kafka", "stop", "--json").json == {"was_running": False}
    assert dpstream("kafka", "logs").output == ""
    assert dpstream("kafka", "logs", "--json").json == []
    assert not home.exists()


def test_plan_plots_the_error_of_every_epoch(
    dpstream: Commands, job_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.png"
    result = dpstream("plan", job_file, "--plot", path)
    assert (result.code, result.errors) == (0, f"wrote {path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    result = dpstream("plan", job_file, "--plot", tmp_path / "nowhere" / "plan.png")
    assert result.code == 1
    assert "No such file or directory" in result.errors
    result = dpstream("plan", job_file, "--plot", tmp_path / "plan.foo")
    assert result.code == 2
    assert result.errors.startswith(f"error: --plot {tmp_path / 'plan.foo'}: Format 'foo' is not")


def test_option_to_skip_bad_rows_is_suggested_only_where_it_is_supported(
    dpstream: Commands, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("user,epoch,value\na,1,1\nb,2,2\n")
    result = dpstream("plan", job_file, "--changes-from", "bad.csv")
    assert result.code == 2
    first, second = result.errors.splitlines()
    assert first.endswith("bad.csv: 1 bad row; correct them")
    assert second.endswith("bad.csv:3: value '2' is not 0 or 1")
    assert "--skip-bad-rows" in dpstream("simulate", job_file, "--input", "bad.csv").errors


KNOWN: list[tuple[Exception, int]] = [
    (UsageProblem("x"), 2),
    (JobError([Problem((), "x")]), 2),
    (InputError("x"), 2),
    (ConnectionSettingsError("x"), 2),
    (NoClusterError("x"), 1),
    (ClusterError("x"), 1),
    (DeploymentError("x"), 1),
    (LocalKafkaError("x"), 1),
    (ProducerError("x"), 1),
    (FolderInUse("x"), 1),
    (KafkaTimeoutError("x"), 1),
    (sqlite3.OperationalError("x"), 1),
    (BrokenProcessPool("x"), 1),
    (OSError(errno.ENOSPC, "No space left on device", "x"), 1),
]


@pytest.mark.parametrize(("error", "code"), KNOWN, ids=[type(error).__name__ for error, _ in KNOWN])
def test_expected_errors_print_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    assert run_command(app_that_raises(error), ["--"]) == code
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "lacking", "role"),
    [
        ("estimates small", "small.estimates", "analyst"),
        ("diff small other", "other.partials", "recorder"),
        ("replay small", "small-replay.shuffled", "operator"),
        ("replay --new-name small-2 small", "small-2.shuffled", "operator"),
        ("run publish small", "small.partials", "publish"),
    ],
)
def test_access_error_mentions_a_role_with_permission(
    capsys: pytest.CaptureFixture[str], line: str, lacking: str, role: str
) -> None:
    def fail(**options: object) -> None:
        raise AccessError("User:ann", "read", "topic", lacking)

    assert run_command(fail, line.split()) == 1
    job = lacking.partition(".")[0]
    command = f"'dpstream acl {job} --role {role} --principal {role}=User:ann --apply'"
    assert command in capsys.readouterr().err


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.callback(invoke_without_command=True)
    def fail() -> None:
        raise error

    return app


def test_unexpected_error_keeps_its_traceback() -> None:
    error = ZeroDivisionError("a mistake of ours")
    assert explain(error) is None
    with pytest.raises(ZeroDivisionError):
        run_command(app_that_raises(error), ["--"])


def test_interrupted_command_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app_that_raises(KeyboardInterrupt()), ["--"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif("plan" not in installed_commands(), reason="this copy has no planning")
def test_command_with_a_closed_pipe_prints_no_error(job_file: Path, home: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "dpstream.pipeline.cli", "plan", job_file, "--json"],
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


_COMMAND = [sys.executable, "-m", "dpstream.pipeline.cli"]


def _run(shell: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", shell, "sh", *_COMMAND],
        env={**os.environ, "DPSTREAM_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        encoding="latin-1",
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_table_is_printed_in_any_encoding(job_file: Path, tmp_path: Path, encoding: str) -> None:
    shell = f'"$@" plan {job_file} --users 100'
    done = _run(shell, tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "privacy" in done.stdout


def test_closed_standard_output_ends_without_traceback(tmp_path: Path) -> None:
    done = _run('"$@" list >&-', tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no local Kafka is running")
    assert "Traceback" not in done.stderr


def test_closed_standard_error_does_not_stop_a_command(job_file: Path, tmp_path: Path) -> None:
    done = _run(f'"$@" plan {job_file} --users 100 2>&-', tmp_path)
    assert done.returncode == 0
    assert "privacy" in done.stdout
