"""Test ``dpstream preview``: answers, changes and rows before anything is spent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.event_log import read_events
from dpstream.pipeline.jobs.job_files import load_job
from dpstream.pipeline.planning.event_previews import preview_measures
from dpstream.randomizers.measures import Measure
from tests.support.commands import Commands

EVENTS = """user,time,event,os,minutes
ann,2026-01-04,open,ios,
bob,2026-01-06,buy,web,2.5
ann,2026-01-20,buy,tv,7
ann,2026-01-20,search,,0.5
bob,2026-01-13,open,ios,1
cyd,2026-01-13,x,ios,4
"""


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text(EVENTS)
    return path


def job_file(tmp_path: Path, measures: dict[str, Any], **keys: Any) -> Path:
    epochs = {"count": 4, "start": "2026-01-05", "length": "P1W"}
    given = {"name": "app", "epochs": epochs, "parameters": {"epsilon": 4}, "measures": measures}
    path = tmp_path / "app.yaml"
    path.write_text(json.dumps(given | keys))
    return path


def test_preview_shows_answers_changes_and_refused_rows(
    dpstream: Commands, tmp_path: Path, events: Path
) -> None:
    job = job_file(tmp_path, {"wau": {"type": "active", "within": 2}})
    events.write_text(EVENTS + "dan,yesterday,open,ios,1\n")
    body = dpstream("preview", job, "--input", events, "--json").json
    assert (body["users"], body["events"], body["bad_rows"]) == (4, [1, 2, 2, 0], 1)
    (wau,) = body["measures"]
    assert [answer["yes"] for answer in wau["answers"]] == [2, 2, 3, 1]
    assert wau["users_within_changes"]["1"] == 0.25
    assert wau["users_within_changes"]["4"] == 1
    picture = tmp_path / "events.png"
    shown = dpstream("preview", job, "--input", events, "--plot", picture)
    assert "time 'yesterday' is invalid" in shown.output
    assert "note: 1 row before epoch 1: used as history" in shown.output
    assert "max_changes: 4 covers 100% of the users" in shown.output
    assert "not private" in shown.errors
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_written_user_list_has_public_attributes_of_first_rows(
    dpstream: Commands, tmp_path: Path, events: Path
) -> None:
    attributes = {"platform": {"column": "os", "values": ["ios", "web"], "public": True}}
    job = job_file(tmp_path, {"wau": {"type": "active"}}, attributes=attributes, by=["platform"])
    users = tmp_path / "users.csv"
    said = dpstream("preview", job, "--input", events, "--write-users", users).errors
    assert users.read_text() == "user,os\nann,ios\nbob,web\ncyd,ios\n"
    assert "all 3 users in it and their os become public" in said
    with users.open("a") as file:
        file.write("eve,web\n")
    body = dpstream("preview", job, "--input", events, "--users", users, "--json").json
    assert body["users"] == 4


def test_changes_of_a_mean_are_those_of_its_bit(tmp_path: Path) -> None:
    measure = {"type": "sum", "number": "n", "mean": {"low": 0, "high": 10}}
    measures = {"n": measure, "yes": {"type": "active"}}
    path = tmp_path / "events.csv"
    # Each number is half of the range, in every second epoch: half of the users change each time.
    rows = [f"u{user},{epoch},5\n" for user in range(4000) for epoch in (1, 3)]
    path.write_text("user,epoch,n\n" + "".join(rows))
    job = load_job(job_file(tmp_path, {"yes": measures["yes"]}))
    job = job.model_copy(update={"measures": load_measures(measures)})
    _, events = read_events(job, path, last_epoch=4)
    mean, active = preview_measures(job, events, 4, np.random.default_rng(1))
    assert mean.columns == ("mean", "10 and more")
    assert mean.answers[:, 0].tolist() == [5, 0, 5, 0]
    assert mean.answers[:, 1].tolist() == [0, 0, 0, 0]
    assert mean.flips == pytest.approx(2, abs=0.2)
    assert active.flips == 4
    assert "sampled_panels" in mean.advice(2)
    assert "no limit of changes" in mean.advice(None)
    assert active.advice(2) == "max_changes: 4 covers 100% of the users; the job's 2 covers 0%"
    trusting = job.model_copy(update={"trust": "shuffle"})
    summed, _ = preview_measures(trusting, events, 4, np.random.default_rng(1))
    assert summed.flips == 2, "each user's number moves four times by half of the range"
    assert summed.advice(2) == "max_changes: 2 covers 100% of the users"
    restless = replace(summed, within=(0.0,) * len(summed.within), flips=40.0)
    assert "max_changes: 4, one for each epoch, follows all users" in restless.advice(2)


def load_measures(measures: dict[str, Any]) -> dict[str, Any]:

    return {name: Measure.from_json(keys) for name, keys in measures.items()}


def test_days_of_rows_with_epochs_are_refused_as_in_produce(
    dpstream: Commands, tmp_path: Path
) -> None:
    job = job_file(tmp_path, {"often": {"type": "days", "at_least": 2}})
    events = tmp_path / "events.csv"
    events.write_text("user,epoch\nann,1\n")
    said = dpstream("preview", job, "--input", events).errors
    assert "often counts calendar days or periods: rows must have times" in said


def test_preview_requires_measures(dpstream: Commands, tmp_path: Path, events: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        '{"name": "a", "protocol": "value_stream", "epochs": {"count": 2}, '
        '"parameters": {"epsilon": 1, "max_changes": 2}}'
    )
    rejected = dpstream("preview", path, "--input", events)
    assert "requires a job with 'measures'" in rejected.errors


def test_simulation_counts_measures_by_public_group(dpstream: Commands, tmp_path: Path) -> None:
    count = 600
    attributes = {"platform": {"column": "os", "values": ["ios", "web"], "public": True}}
    measures = {
        "wau": {"type": "active"},
        "minutes": {"type": "sum", "number": "n", "within": 2, "mean": {"low": 0, "high": 10}},
    }
    job = job_file(tmp_path, measures, attributes=attributes, by=["platform"])
    systems = [("ios", "web", "tv")[user % 3] for user in range(count)]
    events, users = tmp_path / "events.csv", tmp_path / "users.csv"
    rows = [f"u{user},{epoch},4\n" for user in range(200, count) for epoch in (1, 3)]
    events.write_text("user,epoch,n\n" + "".join(rows))
    users.write_text("user,os\n" + "".join(f"u{n},{os}\n" for n, os in enumerate(systems)))
    rejected = dpstream("simulate", job, "--input", events)
    assert "public attributes platform, which do not come from events" in rejected.errors
    body = dpstream(
        *("simulate", job, "--input", events, "--users", users, "--seed", 1, "--json")
    ).json
    truth = [epoch["ground_truth"] for epoch in body["epochs"]]
    active = [sum(user % 3 == group for user in range(200, count)) for group in range(3)]
    assert truth[0][:4] == truth[2][:4] == [sum(active), *active]
    assert truth[1][:4] == [0, 0, 0, 0]
    assert truth[1][4:] == pytest.approx(truth[0][4:])
    assert truth[0][4] == pytest.approx(4 * 400 / count, rel=1e-6)


@pytest.mark.parametrize(
    ("rows", "told"),
    [("", ""), ("u,3\n", "no row is before epoch 1"), ("u,-1\n", "first row is in epoch -1")],
)
def test_incomplete_windows_are_told_by_the_rows_that_exist(
    dpstream: Commands, tmp_path: Path, rows: str, told: str
) -> None:
    job = job_file(tmp_path, {"mau": {"type": "active", "within": 4}})
    events, users = tmp_path / "events.csv", tmp_path / "users.csv"
    events.write_text(f"user,epoch\n{rows}")
    users.write_text("user\n" + "".join(f"u{n}\n" for n in range(200)) + "u\n")
    errors = dpstream("simulate", job, "--input", events, "--users", users).errors
    assert ("windows of 4 epochs are complete from" in errors) == bool(told)
    assert told in errors


@pytest.mark.parametrize("more", [{}, {"wau": {"type": "active"}}], ids=["alone", "with wau"])
def test_simulation_shows_the_decimals_that_are_known_of_a_mean(
    dpstream: Commands, tmp_path: Path, more: dict[str, Any]
) -> None:
    """A mean of 0.25 is neither 0 nor 0.3, and its error is not one of a number of users."""
    mean = {"type": "sum", "number": "n", "mean": {"low": 0, "high": 1}}
    job = job_file(tmp_path, {"used": mean, **more})
    events = tmp_path / "events.csv"
    events.write_text(
        "user,epoch,n\n" + "".join(f"u{n},1,{int(n < 5000)}\n" for n in range(20_000))
    )
    output = dpstream("simulate", job, "--input", events, "--seed", 1).output
    rows = (line.split() for line in output.splitlines())
    used = next(row[row.index("used") + 1 :] for row in rows if row[:1] == ["1"])
    assert float(used[-1]) == 0.25
    assert all(len(number.partition(".")[2]) >= 3 for number in used), used
    (error,) = (line for line in output.splitlines() if "squared error of used" in line)
    assert 0 < float(error.split()[-1]) < 0.02
    (all_errors,) = (line for line in output.splitlines() if "predicted" in line)
    assert ("of numbers of users" in all_errors) == (" users," in all_errors) == bool(more)


def test_plan_shows_errors_of_means_that_the_shuffler_sums(
    dpstream: Commands, tmp_path: Path
) -> None:
    """The error of a single sum, 22 of 100,000 users, or of a sample of half of the users."""
    mean = {"type": "sum", "number": "minutes", "mean": {"low": 0, "high": 10}}
    trusting = {
        "epochs": {"count": 52, "start": "2026-01-05", "length": "P7D"},
        "trust": "shuffle",
        "parameters": {"epsilon": 1, "delta": 1e-6, "max_changes": 4},
        "shuffle": {"minimum": 100},
    }
    for more, error, share in (
        ({}, "0.0022", "0.02%"),
        ({"wau": {"type": "active"}}, None, "0.2%"),
    ):
        job = job_file(tmp_path, {"minutes": mean, **more}, **trusting)
        output = dpstream("plan", job, "--users", 100_000).output
        (line,) = (each.split() for each in output.splitlines() if each.startswith("minutes "))
        assert line[-1] == share
        assert error in (None, line[2])


def test_plan_counts_changes_in_events(dpstream: Commands, tmp_path: Path, events: Path) -> None:
    mean = {"type": "sum", "number": "minutes", "mean": {"low": 0, "high": 10}}
    job = job_file(tmp_path, {"wau": {"type": "active"}, "minutes": mean})
    planned = dpstream("plan", job, "--changes-from", events)
    assert "users by number of changes" in planned.output
    assert "wau      max_changes: 2 covers 100% of the users" in planned.output
    assert "not private" in planned.errors
    body = dpstream("plan", job, "--changes-from", events, "--json").json
    assert [each["measure"] for each in body["measures"]] == ["wau", "minutes"]
    one = job_file(tmp_path, {"wau": {"type": "active"}}, protocol="value_stream")
    assert dpstream("plan", one, "--changes-from", events, "--json").json["changes"]
