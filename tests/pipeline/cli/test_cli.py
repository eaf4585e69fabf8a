"""The command line: what it says, where it says it, and with which exit code."""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import typer
from kafka.errors import KafkaTimeoutError

from dpstream.pipeline.cli import main
from dpstream.pipeline.cli.errors import UsageProblem, explain, run_command
from dpstream.pipeline.cli.output import duration, instant, iso, number, say_table
from dpstream.pipeline.cli.verbs import VERBS, build_command
from dpstream.pipeline.devices.producer import ProducerError
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.errors import INTERRUPTED
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.kafka.client_properties import ConnectionSettingsError
from dpstream.pipeline.kafka.cluster import AccessError, ClusterError
from dpstream.pipeline.kafka.connection import NoClusterError
from dpstream.pipeline.kafka.local_kafka import LocalKafkaError
from dpstream.pipeline.operations.deployed_jobs import DeploymentError
from dpstream.pipeline.planning.plan import plan as make_plan
from dpstream.pipeline.planning.plan_plot import draw_plan
from dpstream.pipeline.protocols.registry import OWN
from dpstream.pipeline.state import FolderInUse
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster
from tests.support.small_run import job_text

ROOT = Path(__file__).parents[3]
SLOW_TO_IMPORT = {"numpy", "scipy", "kafka", "aiokafka", "faust", "pydantic", "randomgen"}
COMMANDS = [
    *("demo", "up", "plan", "simulate"),
    *("keygen", "erase-keys", "audit", "acl"),
    *("ledger", "budget"),
    *("deploy", "undeploy", "list", "run", "produce", "pause", "resume", "drain"),
    *("record", "replay", "serve", "password", "collect"),
    *("record", "estimates", "query", "diff", "status", "producers", "dead-letters"),
    *("kafka|start", "kafka|stop", "kafka|status", "kafka|logs"),
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder that does not exist yet; no cluster is named."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DPSTREAM_HOME", str(folder))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    return folder


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(dpstream: Commands, command: str) -> None:
    words = command.split("|")
    said = dpstream(*words, "--help")
    assert said.code == 0
    assert f"Example: dpstream {' '.join(words)}" in said.output
    assert max(map(len, said.output.splitlines())) <= 80


def test_the_list_of_commands_above_is_complete() -> None:
    kafka = build_command().commands["kafka"].loaded.commands  # type: ignore[attr-defined]
    assert {*VERBS} - {"kafka"} | {f"kafka|{name}" for name in kafka} == set(COMMANDS)


@pytest.mark.parametrize("name", VERBS)
def test_help_flows_in_terminals_of_every_width_and_begins_as_in_the_list(name: str) -> None:
    command = build_command().commands[name]
    paragraphs = command.loaded.help.split("\n\n")  # type: ignore[attr-defined]
    assert all("\n" not in paragraph for paragraph in paragraphs)
    assert paragraphs[0] == command.help == VERBS[name].summary


def test_ctrl_c_while_it_loads_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is loaded before `main` can catch it is next to nothing.
    program = "import sys; from dpstream.pipeline.cli import main; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert not {"typer", "numpy", "pydantic", "dpstream.pipeline.cli.errors"} & {*loaded}

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dpstream.pipeline.cli._command", interrupted)
    assert main(["jobs"]) == INTERRUPTED == 130


def test_help_is_quick_because_it_imports_nothing_slow() -> None:
    program = (
        "import sys; from dpstream.pipeline.cli import main; main(['--help']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    assert "typer" in modules
    assert not SLOW_TO_IMPORT & set(modules)


def test_a_verb_imports_no_other_verbs_module() -> None:
    program = (
        "import sys; from dpstream.pipeline.cli import main; main(['kafka', '--help']); "
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    targets = {f"dpstream.pipeline.cli.{verb.target.partition(':')[0]}" for verb in VERBS.values()}
    assert targets & set(done.stdout.splitlines()[-1].split()) == {"dpstream.pipeline.cli.kafka"}


def test_who_asks_about_a_job_imports_nothing_that_plans_deploys_simulates_or_draws() -> None:
    program = (
        "import sys; from dpstream.pipeline.cli import main; "
        "main(['status', '--help']); main(['estimates', '--help']); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1].split()
    assert {"dpstream.pipeline.cli.status", "dpstream.pipeline.cli.estimates"} <= set(modules)
    unused = (
        *(
            "dpstream.pipeline.planning",
            "dpstream.pipeline.simulation",
            "dpstream.pipeline.operations.deployments",
        ),
        *(
            "dpstream.pipeline.operations.up",
            "dpstream.pipeline.kafka.local_kafka",
            "javaproperties",
            "psutil",
        ),
        *(f"dpstream.pipeline.protocols.{protocol}" for protocol in OWN),
    )
    assert not [each for each in modules if each.startswith(unused)]


@pytest.mark.parametrize("words", [(), ("kafka",)])
def test_lists_of_commands_offer_no_options_but_help(
    dpstream: Commands, words: tuple[str, ...]
) -> None:
    options = re.findall(r"^. (--[a-z-]+)", dpstream(*words, "--help").output, re.MULTILINE)
    assert options == (["--help"] if words else ["--version", "--help"])


def test_it_says_its_version(dpstream: Commands) -> None:
    said = dpstream("--version")
    assert (said.code, said.output, said.errors) == (0, f"dpstream {version('dpstream')}\n", "")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_flags_are_shown_as_flags(dpstream: Commands, command: str) -> None:
    output = dpstream(*command.split("|"), "--help").output if command else dpstream().output
    assert "--help" in output
    assert "bool" not in output.lower()


def test_without_arguments_it_says_what_there_is(dpstream: Commands) -> None:
    assert dpstream() == dpstream("--help")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("plann x.yaml", "No such command 'plann'"),
        ("plan", "Missing argument 'JOBFILE'"),
        ("plan {job} --users 0", "--users"),
        ("plan {job} --user 5", "No such option"),
        ("plan {job} --error 0", "--error is 0: give a share of the users, such as 2%"),
        ("plan {job} --error 200%", "--error is 200%: give a share of the users, such as 2%"),
        ("plan {job} --error small", "--error is small: give a share of the users, such as 2%"),
        ("plan {job} --changes-histogram {missing}", "cannot read the histogram of changes"),
        (
            "plan {job} --changes-histogram a.csv --changes-from b.csv",
            "--changes-histogram and --changes-from are both there: give one",
        ),
        ("simulate {job}", "Missing option '--input'"),
        ("simulate {job} --input x.csv --trials 0", "--trials"),
        (
            "run sort small",
            "'sort' is not one of 'shuffle', 'instance-2', 'instance-3', 'instance-4', ",
        ),
        ("produce small --input x.csv --rate 0", "--rate is 0, must be above 0"),
        ("produce small --input x.csv --name a/b", "--name is a/b"),
        ("run publish small --name ..", "--name is .."),
        ("estimates small --format xml", "--format"),
        ("list --bootstrap-servers here", "HOST:PORT"),
        ("list --kafka-config {missing}", "client.properties"),
        ("kafka", "Missing command"),
        ("kafka start --port 70000", "--port"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_a_hint(
    dpstream: Commands, job_file: Path, tmp_path: Path, arguments: str, told: str
) -> None:
    line = arguments.format(job=job_file, missing=tmp_path / "client.properties")
    said = dpstream(*line.split())
    assert said.code == 2
    assert told in said.errors
    assert said.errors.startswith("error: ")
    assert len(said.errors.splitlines()) <= 2
    assert said.output == ""


def test_a_wrong_job_file_names_the_lines_and_what_is_allowed(
    dpstream: Commands, tmp_path: Path
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: students\nprotocol: future_rand\nparameters: {epsilon: -1, changes: 4}\n"
        "epochs: {count: 8, lenght: P1W}\n"
    )
    for command in (["plan"], ["deploy"], ["simulate", "--input", "x.csv"]):
        said = dpstream(*command, path)
        assert said.code == 2
        assert f"{path}:3: parameters" in said.errors
        assert f"{path}:4: epochs.lenght" in said.errors
        assert "did you mean length" in said.errors
        assert len(said.errors.splitlines()) == 2


def test_a_missing_job_file(dpstream: Commands, tmp_path: Path) -> None:
    said = dpstream("plan", tmp_path / "nowhere.yaml")
    assert (said.code, said.output) == (2, "")
    assert "nowhere.yaml: cannot read the job file" in said.errors


@pytest.mark.parametrize(
    "arguments",
    [
        "list",
        "status",
        "status small",
        "estimates small",
        "estimates small --follow",
        "diff small large",
        "producers small",
        "dead-letters small",
        "undeploy small",
        "ledger small",
        "budget students",
        "pause small",
        "resume small",
        "drain small",
        "produce small --input x.csv",
        "run shuffle small",
    ],
)
def test_without_a_broker_it_says_how_to_get_one_and_starts_none(
    dpstream: Commands, home: Path, arguments: str
) -> None:
    said = dpstream(*arguments.split())
    assert (said.code, said.output) == (1, "")
    assert "dpstream kafka start" in said.errors
    assert "--bootstrap-servers" in said.errors
    assert len(said.errors.splitlines()) == 1
    assert not home.exists()


def test_the_local_broker_when_there_is_none(dpstream: Commands, home: Path) -> None:
    said = dpstream("kafka", "status")
    assert (said.code, said.errors) == (1, "")
    assert "dpstream kafka start" in said.output

    said = dpstream("kafka", "status", "--json")
    assert said.code == 1
    assert json.loads(said.output)["running"] is False

    assert dpstream("kafka", "stop").output == "Kafka was not running\n"
    assert dpstream("kafka", "stop", "--json").json == {"was_running": False}
    assert dpstream("kafka", "logs").output == ""
    assert dpstream("kafka", "logs", "--json").json == []
    assert not home.exists()


def test_plan_says_what_is_promised_and_what_to_expect(dpstream: Commands, job_file: Path) -> None:
    said = dpstream("plan", job_file, "--users", 5000)
    assert said.code == 0
    assert max(map(len, said.output.splitlines())) <= 80
    for words in ("epsilon 2 for a user's whole stream", "5,000 users", "95 % interval", "c_gap"):
        assert words in said.output

    planned = dpstream("plan", job_file, "--users", 5000, "--json").json
    assert planned["users"] == 5000
    assert planned["guarantee"]["epsilon"] == pytest.approx(2)
    assert planned["interval_half_width"] == pytest.approx(1.96 * planned["rmse"], rel=1e-4)
    assert [row["order"] for row in planned["constants"]] == [0, 1, 2, 3, 4]
    assert len(planned["epochs"]) == 12


def test_plan_says_what_each_party_learns(dpstream: Commands, job_file: Path) -> None:
    said = dpstream("plan", job_file, "--users", 5000).output
    for party in ("analyst", "who adds up", "shuffle operator", "broker operator", "producer or"):
        assert f"\n{party}" in said
    assert "89 in 100" in said  # e^2 / (1 + e^2)
    assert "always" in said
    assert "epochs 1 to 12" in said
    parties = dpstream("plan", job_file, "--json").json["parties"]
    assert [each["epsilon"] for each in parties][-1] is None
    assert parties[0]["guess"] == pytest.approx(0.8808, abs=1e-4)


def test_plan_compares_and_recommends(dpstream: Commands, job_file: Path) -> None:
    asked = ("plan", job_file, "--compare", "--recommend", "--trust", "nobody", "--error", "5%")
    said = dpstream(*asked, "--users", 5000)
    assert (said.code, said.errors) == (0, "")
    assert max(map(len, said.output.splitlines())) <= 80
    assert "protocols that could do this job" in said.output
    (chosen,) = (line for line in said.output.splitlines() if ": it errs by" in line)
    assert chosen.startswith("1 future_rand: ")
    assert "shuffled_counts: asks to trust the shuffle stage" in said.output
    body = dpstream(*asked, "--users", 5000, "--json").json
    protocols = [each["expected"]["protocol"] for each in body["comparison"]]
    assert protocols[body["recommendation"]["chosen"]] == "future_rand"
    assert dpstream("plan", job_file, "--recommend", "--trust", "god").code == 2


def test_plan_says_what_is_left_with_fewer_contributors(dpstream: Commands, job_file: Path) -> None:
    said = dpstream("plan", job_file, "--colluding", "0.1", "--absent", "0.3").output
    assert "with 30% absent, and 10% of the others colluding" in said
    assert "epsilon  2: it rests on nobody else" in said
    assert (
        "too few: every epoch would be withheld"
        in dpstream("plan", job_file, "--users", 120, "--absent", "0.5").output
    )
    for option in ("--colluding", "--absent"):
        refused = dpstream("plan", job_file, option, "1")
        assert refused.code == 2
        assert f"{option} is 1: give a share from 0 to below 1" in refused.errors


def test_plan_shows_both_sides_of_a_central_guarantee(dpstream: Commands, tmp_path: Path) -> None:
    path = tmp_path / "central.yaml"
    path.write_text(
        "name: mixed\nprotocol: value_stream\nparameters: {changes: 2}\nepochs: {count: 12}\n"
        "central: {epsilon: 0.5, delta: 1.0e-6}\nshuffle: {minimum: 100000}\n"
    )
    said = dpstream("plan", path, "--users", 100_000).output
    assert "epsilon 5.917 for a user's whole stream" in said
    assert "epsilon 0.5, delta 1e-06 for users whose producers" in said
    assert "63 in 100" in said


def test_plan_weighs_noise_against_freezing_and_says_what_is_not_private(
    dpstream: Commands, job_file: Path, tmp_path: Path
) -> None:
    histogram, changes = tmp_path / "histogram.csv", tmp_path / "changes.csv"
    histogram.write_text("changes,users\n1,90\n3,10\n")
    said = dpstream("plan", job_file, "--changes-histogram", histogram)
    assert (said.code, said.errors) == (0, "")
    assert max(map(len, said.output.splitlines())) <= 80
    (best,) = (line.split() for line in said.output.splitlines() if line.endswith("best"))
    rows = dpstream("plan", job_file, "--changes-histogram", histogram, "--json").json["changes"]
    assert [row["changes"] for row in rows if row["best"]] == [int(best[0])]

    changes.write_text(
        "user,epoch,value\n"
        + "".join(f"user{user},{1 + user % 5},1\n" for user in range(90))
        + "".join(f"other{user},{epoch},{epoch % 2}\n" for user in range(10) for epoch in (3, 6, 9))
    )
    counted = dpstream("plan", job_file, "--changes-from", changes, "--json")
    assert counted.json["changes"] == rows
    assert counted.errors.startswith("not private: the shares of users by changes are counted in")


def test_plan_says_for_how_many_users_an_error_holds(dpstream: Commands, job_file: Path) -> None:
    for share in ("5%", "0.05"):
        said = dpstream("plan", job_file, "--error", share).output
        assert "of 5%" in said
        assert "of 10%" not in said
    said = dpstream("plan", job_file, "--error", 500).output
    most = dpstream("plan", job_file, "--error", 500, "--json").json["most_users"]["users"]
    assert f"of at most 500 users  up to {most:,} users: the error grows" in said
    said = dpstream("plan", job_file, "--error", 1).output
    assert "of at most 1.0 users  none: with shuffle.minimum, 100 users, it is larger" in said


def test_plan_draws_the_error_of_every_epoch(
    dpstream: Commands, job_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "plan.png"
    said = dpstream("plan", job_file, "--plot", path)
    assert (said.code, said.errors) == (0, f"{path} is written\n")
    assert path.read_bytes().startswith(b"\x89PNG")
    said = dpstream("plan", job_file, "--plot", tmp_path / "nowhere" / "plan.png")
    assert said.code == 1
    assert "No such file or directory" in said.errors
    said = dpstream("plan", job_file, "--plot", tmp_path / "plan.foo")
    assert said.code == 2
    assert said.errors.startswith(f"error: --plot {tmp_path / 'plan.foo'}: Format 'foo' is not")

    figure = draw_plan(make_plan(load_job(job_file), 5000))
    online, smoothed = figure.axes[0].get_lines()
    drawn, drawn_smoothed = (np.asarray(line.get_ydata(), float) for line in (online, smoothed))
    assert len(drawn) == 12
    assert (drawn_smoothed <= drawn + 1e-9).all()
    assert drawn_smoothed.min() > 0


def test_plan_warns_of_what_will_not_work(dpstream: Commands, job_file: Path) -> None:
    with job_file.open("a") as file:
        file.write("budget: {epsilon: 1}\n")
    said = dpstream("plan", job_file, "--users", 50)
    warnings = " ".join(said.output.split()).split("warning: ")[1:]
    assert warnings[0].startswith("50 users are fewer than shuffle.minimum, 100")
    assert warnings[1].startswith("deploy will refuse this job: population small may be charged")
    assert len(dpstream("plan", job_file, "--users", 50, "--json").json["warnings"]) == 2


def renewing(path: Path, more: str = "", name: str = "small") -> Path:
    path.write_text(job_text(name, more=", renew: true") + more)
    return path


def test_plan_counts_the_horizons_of_a_fresh_budget(dpstream: Commands, job_file: Path) -> None:
    for keys, said in (
        ("budget: {epsilon: 5}", "epsilon 5: 2 horizons, 4 in all; what was charged before is"),
        ("budget: {epsilon: 2.5}", "epsilon 2.5: 1 horizon, 2 in all; what was charged before is"),
        ("budget: {epsilon: 1}", None),
        ("", None),
    ):
        output = " ".join(dpstream("plan", renewing(job_file, f"{keys}\n")).output.split())
        assert ("what was charged before" in output) == (said is not None)
        assert said is None or f"budget {said}" in output
    renewing(job_file, "budget: {epsilon: 5}\n")
    found = dpstream("plan", job_file, "--json").json["budget"]
    assert found == {"epsilon": 5.0, "horizons": 2, "charged": pytest.approx(4, rel=1e-4)}


def test_horizons_without_end_of_people_shared_with_others_are_warned_of(
    dpstream: Commands, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_memory_cluster(monkeypatch)
    warning = "no budget of these people can be kept after it"
    for keys, warned in (
        ("population: students\n", True),
        ("population: students\nbudget: {epsilon: 9}\n", False),
        ("", False),
    ):
        renewing(job_file, keys, "a" if warned else "b")
        said = dpstream("deploy", job_file, "--replace", "--yes", "--json")
        assert (said.errors.startswith("WARNING: ") and warning in said.errors) == warned
        assert said.errors.count("\n") <= 2  # the other line is about rounded epochs
        warnings = dpstream("plan", job_file, "--json").json["warnings"]
        assert any(warning in each for each in warnings) == warned


def test_list_shows_what_all_horizons_cost(
    dpstream: Commands, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_memory_cluster(monkeypatch)
    job_file.write_text(job_text("once"))
    assert dpstream("deploy", job_file).code == 0
    assert dpstream("deploy", renewing(job_file, "budget: {epsilon: 7}\n", "counted")).code == 0
    assert dpstream("deploy", renewing(job_file, name="endless")).code == 0
    rows = {line.split()[0]: line for line in dpstream("list").output.splitlines()[1:]}
    assert " 12        2  " in rows["once"]
    assert " 3 x 12        6  " in rows["counted"]
    assert " n x 12    n x 2  " in rows["endless"]
    counted, endless, once = (job["guarantee"] for job in dpstream("list", "--json").json)
    assert counted["epsilon"] == pytest.approx(3 * once["epsilon"])
    assert (counted["horizons"], endless["horizons"]) == (3, 1)


def test_a_wrong_choice_is_told_in_words(dpstream: Commands) -> None:
    said = dpstream("run", "shuffl", "job")
    assert said.code == 2
    assert said.errors.startswith("error: Invalid value for 'stage': 'shuffl' is not one of ")


def test_bad_rows_are_to_be_skipped_only_where_they_can_be(
    dpstream: Commands, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("user,epoch,value\na,1,1\nb,2,2\n")
    said = dpstream("plan", job_file, "--changes-from", "bad.csv")
    assert said.code == 2
    first, second = said.errors.splitlines()
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
def test_what_can_be_expected_is_told_in_a_line(
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
        ("status small", "small.manifests", "operator"),
        ("estimates small", "small.estimates", "analyst"),
        ("estimates small --smoothed", "small.partials", "recorder"),
        ("query small --top 3", "small.partials", "recorder"),
        ("diff small other", "other.partials", "recorder"),
        ("record small --output kept", "small.shuffled", "recorder"),
        ("replay small", "small.shuffled", "recorder"),
        ("replay small", "small-replay.shuffled", "operator"),
        ("replay --as small-2 small", "small-2.shuffled", "operator"),
        ("run publish small", "small.partials", "publish"),
    ],
)
def test_who_is_refused_is_told_a_role_that_may(
    capsys: pytest.CaptureFixture[str], line: str, lacking: str, role: str
) -> None:
    def command(**options: object) -> None:
        raise AccessError("User:ann", "read", "topic", lacking)

    assert run_command(command, line.split()) == 1
    job = lacking.partition(".")[0]
    assert f": dpstream acl {job} --role {role} --principal" in capsys.readouterr().err


def app_that_raises(error: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.callback(invoke_without_command=True)
    def fail() -> None:
        raise error

    return app


def test_what_nobody_expected_keeps_its_traceback() -> None:
    error = ZeroDivisionError("a mistake of ours")
    assert explain(error) is None
    with pytest.raises(ZeroDivisionError):
        run_command(app_that_raises(error), ["--"])


def test_ctrl_c_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(app_that_raises(KeyboardInterrupt()), ["--"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_goes_away_is_no_news(job_file: Path, home: Path) -> None:
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


def test_main_takes_the_arguments_of_its_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dpstream", "plan"])
    assert main() == 2
    assert "dpstream plan --help" in capsys.readouterr().err


def test_what_a_topic_says_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say_table(["worker"], [["\x1b[31mw1\x07"]])
    assert capsys.readouterr().out.split() == ["worker", "\ufffd[31mw1\ufffd"]


def test_numbers_and_times_for_people() -> None:
    assert [number(value) for value in (None, 0, 12, 12345, 0.25, -3.14, 1234.5)] == [
        *("-", "0", "12", "12,345", "0.2", "-3.1"),
        "1,234",
    ]
    assert [duration(seconds) for seconds in (-1, 0.04, 59, 60, 3_600, 90_061)] == [
        *("0.0 s", "0.0 s", "59 s", "1 min", "1 h"),
        "1 d 1 h",
    ]
    assert instant(1_700_000_000_000) == "2023-11-14 22:13 UTC"
    assert iso(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
