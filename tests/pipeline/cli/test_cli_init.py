"""Test ``dpstream init``: three questions, options for all answers, and job files that work."""

from __future__ import annotations

import io
import re
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.jobs.job_files import Job, load_job
from tests.support.commands import Commands, Result
from tests.support.event_files import NAMES, START, made_events, write_events

EVENTS = made_events(users=400, weeks=12)


class Typed(io.StringIO):
    """Standard input or output of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_events(tmp_path / "app log.csv", EVENTS, names=NAMES[1], separator=";")


def job_from(result: Result) -> Job:
    assert result.code == 0, result.errors
    (path,) = Path().glob("*.yaml")
    return load_job(path)


def test_defaults_are_explained_without_a_terminal(dpstream: Commands, log: Path) -> None:
    result = dpstream("init", log)
    job = job_from(result)
    assert (job.name, job.epochs.count, str(job.epochs.length)) == ("app-log", 12, "P7D")
    assert list(job.measures or {}) == ["wau", "mau"]
    assert "counted: active, by default. With --count: events, seconds" in result.output
    assert "--trust shuffle" in result.output
    assert "--public os if everyone may know it" in result.output
    assert "read on this machine without noise. Nothing was sent or spent" in result.output
    assert "dpstream preview app-log.yaml --input " in result.output


def test_every_answer_is_an_option(dpstream: Commands, log: Path) -> None:
    arguments = ("--count", "seconds", "--public", "os", "--trust", "none", "--name", "spent")
    result = dpstream("init", log, *arguments, "--epoch", "1 month", "--timezone", "Europe/Berlin")
    job = job_from(result)
    assert (job.name, str(job.epochs.length)) == ("spent", "P1M")
    assert job.epochs.timezone == "Europe/Berlin"
    assert {name: each.type for name, each in (job.measures or {}).items()} == {
        "seconds": "sum",
        "events": "count",
    }
    assert (job.measures or {})["seconds"].event == ("leave",)
    assert (job.by, job.public_attributes) == ((("os",),), ("os",))
    assert "the 99th percentile" in result.output
    assert "--write-users users.csv" in result.output
    assert "by default" not in result.output


def test_a_trusted_shuffler_is_asked_one_question_by_a_private_column(
    dpstream: Commands, log: Path
) -> None:
    result = dpstream("init", log, "--trust", "shuffle", "--by", "os", "--event", "search")
    job = job_from(result)
    assert (job.trust, list(job.measures or {}), job.protocol) == (
        *("shuffle", ["wau"]),
        "shuffled_counts",
    )
    assert job.shuffle.minimum <= 200
    assert (job.measures or {})["wau"].event == ("search",)


def test_an_existing_job_file_is_replaced_only_by_force(dpstream: Commands, log: Path) -> None:
    Path("app-log.yaml").write_text("mine")
    refused = dpstream("init", log, "--trust", "shuffle")
    assert (refused.code, Path("app-log.yaml").read_text()) == (2, "mine")
    assert "--force" in refused.errors
    job_from(dpstream("init", log, "--trust", "shuffle", "--force"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--count", "minutes"), "cannot count minutes; expected one of: active, events, seconds"),
        (("--by", "plan"), "cannot break down by plan; columns with few different values: os"),
        (("--event", "buy"), "no event is called buy; events: "),
        (("--trust", "all"), "expected none or shuffle"),
        (("--epoch", "soon"), "--epoch: 'soon' is not a duration"),
        (("--name", "No name"), "--name: job name 'No name' is invalid"),
        (("--column", "user=uuid"), "no column 'uuid'; expected one of: uid, when, what"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    dpstream: Commands, log: Path, arguments: tuple[str, ...], part: str
) -> None:
    result = dpstream("init", log, *arguments)
    assert result.code == 2
    assert part in result.errors
    assert not Path("app-log.yaml").exists()


def test_three_questions_are_asked_on_a_terminal(
    dpstream: Commands, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = f"{log.name}\nminutes\nactive\nos\nnone\npublic\n"
    screen = Typed()
    monkeypatch.setattr(sys, "stdin", Typed(answers))
    monkeypatch.setattr(sys, "stdout", screen)
    assert dpstream("init").code == 0
    job = load_job(Path("app-log.yaml"))
    assert list(job.measures or {}) == ["wau", "mau"]
    assert job.public_attributes == ("os",)
    shown = " ".join(screen.getvalue().split())
    found = re.search(
        r"none devices .*; at epsilon 4, predicted error about (\d+) of 400 users .*"
        r"shuffle a shuffler, .*; at epsilon 1, predicted error about (\d+) of 400 users .*"
        r"private about (\d+) of (\d+) users .*"
        r"public about (\d+) of (\d+) users \S+ ([0-9.]+) times smaller; everyone may know it",
        shown,
    )
    assert found is not None, shown
    local, trusted, private, group, public, same_group, times = map(float, found.groups())
    assert (min(local, trusted) > 0, group) == (True, same_group)
    assert times == pytest.approx(private / public, rel=0.1)
    assert times > 2
    for text in ("1. Which file", "2. What is counted?", "3. Who is trusted?", "unknown: minutes"):
        assert text in screen.getvalue()


@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ("user,epoch,value\na,1,1\nb,1,0\na,3,0\n", {"protocol": "value_stream"}),
        ("user,epoch,state\na,1,new\nb,1,old\na,3,old\n", {"protocol": "hadamard_values"}),
        (
            "user,time,value\n" + "".join(f"u{n},2026-01-{n % 28 + 1:02},{n}\n" for n in range(90)),
            {"protocol": "range_values"},
        ),
        ("wer;epoch;value\na;1;ja\nb;2;nein\na;3;nein\n", {"protocol": "value_stream"}),
    ],
)
@pytest.mark.parametrize("trust", ["none", "shuffle"])
def test_a_log_of_changes_gets_a_protocol(
    dpstream: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: str,
    keys: dict[str, Any],
    trust: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(rows)
    job = job_from(dpstream("init", "log.csv", "--trust", trust))
    assert job.measures is None
    assert job.protocol == (keys["protocol"] if trust == "none" else "shuffled_counts")
    simulated = dpstream("simulate", "log.yaml", "--input", "log.csv", "--json")
    assert simulated.code == 0, simulated.errors
    assert dpstream("plan", "log.yaml", "--json").code == 0


def test_three_commands_lead_from_events_to_estimates_by_platform(
    dpstream: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = ("u00001;soon;open;ios;", "u00002;2026-01-06;open;ios;")
    names = NAMES[1]
    write_events(Path("log.csv"), EVENTS, names=names, times="mixed", separator=";", extra=extra)
    written = dpstream("init", "log.csv", "--public", "os")
    steps = [
        shlex.split(line)[1:]
        for line in written.output.splitlines()
        if line.strip().startswith("dpstream ")
    ]
    assert [words[0] for words in steps] == ["preview", "up"]
    assert "--skip-bad-rows" in steps[1]
    assert dpstream(*steps[0]).code == 0
    options = [word for word in steps[1][1:] if word != "--page"]
    body = dpstream("simulate", *options, "--seed", 1, "--json").json
    week = next(each for each in body["epochs"] if each["epoch"] == 3)
    start = START + timedelta(weeks=2)
    users = {
        (each.user, each.os) for each in EVENTS if start <= each.time < start + timedelta(weeks=1)
    }
    job = load_job(Path("log.yaml"))
    truth = dict(zip(job.domain.nameable or (), week["ground_truth"], strict=True))
    assert truth["wau"] == len(users)
    for os in ("android", "ios", "web"):
        assert truth[f"wau: os={os}"] == sum(own == os for _, own in users)
