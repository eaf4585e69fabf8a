"""Items, ranges and quantiles on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.cli.answer_lines import answer_lines, plot_answers
from dpstream.pipeline.cli.output import number
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployed_jobs import find_deployed
from dpstream.pipeline.operations.up.curves import curves_of
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.questions import Count, Query
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import BOOLEAN
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.small_run import job_text, write_changes

EPOCHS = 4
USERS = 400


@pytest.fixture
def hours(tmp_path: Path) -> Path:
    path = tmp_path / "hours.yaml"
    path.write_text(
        "name: hours\nprotocol: range_values\n"
        "parameters: {epsilon: 8, changes: 1, low: 0, high: 80, buckets: 8}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )
    return path


@pytest.fixture
def modes(tmp_path: Path) -> Path:
    path = tmp_path / "modes.yaml"
    path.write_text(
        "name: modes\nprotocol: hadamard_values\n"
        "parameters: {epsilon: 8, changes: 1, domain: [walk, bus, car]}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )
    return path


@pytest.fixture
def hour_changes(tmp_path: Path) -> Path:
    path = tmp_path / "hours.csv"
    rows = [f"u{user},1,{user % 40}\nu{user},3,{40 + user % 40}\n" for user in range(USERS)]
    path.write_text("user,epoch,value\n" + "".join(rows))
    return path


def test_ranges_of_a_simulation_stand_beside_the_truth(
    dpstream: Commands, hours: Path, hour_changes: Path
) -> None:
    ranges = ("--range", "0:40", "--range", "40:60")
    arguments = ("simulate", hours, "--input", hour_changes, "--seed", 1, *ranges)
    body = dpstream(*arguments, "--json").json
    assert body["rmse"] < 4 * body["predicted_rmse"]
    assert [epoch["epoch"] for epoch in body["epochs"]] == [1, 2, 3, 4]
    for epoch in body["epochs"]:
        lower, upper = epoch["ranges"]
        moved = epoch["epoch"] >= 3
        assert (lower["name"], lower["truth"]) == ("0:40", 0 if moved else USERS)
        assert upper["truth"] == (USERS / 2 if moved else 0)
        assert lower["low"] < lower["estimate"] < lower["high"]
    said = dpstream(*arguments)
    assert f" users, predicted {number(body['predicted_rmse'])}" in said.output
    header, first, second, *_ = said.output.splitlines()
    assert header.split() == [
        "epoch",
        "range",
        *["estimate", "±", "sd", "95", "%", "low", "high", "truth"],
    ]
    assert first.split()[:2] == ["1", "0:40"]
    assert second.split()[0] == "40:60"
    assert "intervals that hold the truth" in said.output


def test_published_estimates_are_asked_the_same(
    dpstream: Commands, cluster: MemoryCluster, modes: Path, tmp_path: Path
) -> None:
    assert dpstream("deploy", modes).code == 0
    deployed = find_deployed(cast(Cluster, cluster), "modes")
    for epoch, values in enumerate([[10.0, 60.0, 30.0], [20.0, -5.0, 85.0]], start=1):
        estimate = ItemEstimates(np.array(values), 5.0, 9.8, 70, 100)
        published = EstimateRecord(
            deployed.deployment, epoch, Fate.RELEASED, 0, 90, 100, estimate, {"epsilon": 8.0}
        )
        cluster.append(deployed.topic(Role.ESTIMATES), published.to_bytes())
    said = dpstream("estimates", "modes", "--top", 1, "--norm-sub", "--json")
    bodies = [json.loads(line) for line in said.output.splitlines()]
    assert [[each["name"] for each in body["items"]] for body in bodies] == [["bus"], ["car"]]
    assert [body["items"][0]["norm_sub"] for body in bodies] == [60, 82.5]
    assert (
        len(dpstream("estimates", modes, "--item", "walk", "--item", "car").output.splitlines())
        == 5
    )
    picture = tmp_path / "modes.png"
    drawn = dpstream("estimates", "modes", "--plot", picture).errors
    assert f"{picture} is written" in drawn
    assert "assumes at most 1 change per person after the first value" in drawn
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong_uses: list[tuple[list[object], str]] = [
        (["--item", "buss"], "did you mean 'bus'?"),
        (["--quantile", "0.5"], "--quantile is for jobs over numbers"),
        (["--plot", picture, "--follow"], "leave --follow out"),
    ]
    for options, message in wrong_uses:
        wrong = dpstream("estimates", "modes", *options)
        assert (wrong.code, wrong.errors.count("\n")) == (2, 1)
        assert message in wrong.errors


def test_buckets_are_those_of_the_job_file_or_refused(dpstream: Commands, hours: Path) -> None:
    """Rounded ones would have edges that nobody chose."""
    assert (
        "values lie in 8 buckets, each 10 wide" in dpstream("plan", hours, "--json").json["caveats"]
    )
    hours.write_text(hours.read_text().replace("buckets: 8", "buckets: 24"))
    said = dpstream("plan", hours)
    assert (said.code, said.output) == (2, "")
    wrong = "parameters.buckets: is 24, must be a power of two: give 16 or 32"
    assert said.errors == f"error: {hours}:3: {wrong}\n"


def test_a_plot_of_one_value_has_one_curve(dpstream: Commands, tmp_path: Path) -> None:
    job = tmp_path / "small.yaml"
    job.write_text(job_text())
    changes = write_changes(tmp_path / "changes.csv")
    for picture, options in (("online.png", ()), ("smoothed.png", ("--smoothed",))):
        path = tmp_path / picture
        said = dpstream("simulate", job, "--input", changes, "--plot", path, *options)
        assert (said.code, said.errors) == (0, f"{path} is written\n")
        assert path.read_bytes().startswith(b"\x89PNG")
    estimate = Estimate(40.0, 5.0, 30.2, 49.8, reports=9, population=100)
    records = [replace(record(1, None), estimate=estimate), record(2, None)]
    (curve,) = curves_of(Query(BOOLEAN, Count()), records, np.array([0, 41, 42]))
    assert [curve.values[0], curve.lows[0], curve.highs[0]] == [40.0, 30.2, 49.8]
    assert curve.truth is not None
    assert curve.truth[0] == 41
    assert np.isnan(curve.values[1])


LABELS = tuple(f"item {number}" for number in range(1, 13))
JOB = deploy_job(
    parse_job(
        "name: modes\nprotocol: hadamard_values\n"
        f"parameters: {{epsilon: 8, changes: 1, domain: [{', '.join(LABELS)}]}}\n"
        f"epochs: {{count: {EPOCHS}, start: 2024-01-01, length: P7D}}\n"
    ),
    deployed_at=0,
    deployment=bytes(16),
)


def record(epoch: int, values: list[float] | None) -> EstimateRecord:
    estimate = (
        None if values is None else ItemEstimates(np.array(values), 5.0, 9.8, 70, 100, ("gap",))
    )
    fate = Fate.TOO_SMALL if values is None else Fate.RELEASED
    return EstimateRecord(bytes(16), epoch, fate, 0, 90, 100, estimate, {"epsilon": 8.0})


RECORDS = [
    record(1, [float(number) for number in range(12)]),
    record(2, None),
    record(3, [100.0, *[-float(number) for number in range(11)]]),
]


def test_lines_of_a_table_name_the_epoch_once() -> None:
    query = make_query(JOB.domain, Asked(top=2))
    assert query is not None
    header, *lines = answer_lines(JOB, query, "table", RECORDS)
    assert header.split() == [
        *("epoch", "begins"),
        "item",
        *["estimate", "±", "sd", "95", "%", "low", "high", "±", "all"],
    ]
    assert JOB.epochs.calendar is not None
    first, second, third = map(JOB.epochs.calendar.shown, (1, 2, 3))
    assert lines[0].split() == [
        "1",
        first,
        *["item", "12", "11.0", "5.0", "1.2", "20.8", "14.3,", "gap"],
    ]
    assert lines[1].split()[:2] == ["item", "11"]
    assert lines[2].split() == ["2", second, "-", "-", "-", "-", "-", "too", "small"]
    assert lines[3].split()[:4] == ["3", third, "item", "1"]
    assert lines[1].index("item") == lines[0].index("item")


def test_lines_of_json_are_epochs() -> None:
    query = make_query(JOB.domain, Asked(["item 2"]))
    assert query is not None
    bodies = [json.loads(line) for line in answer_lines(JOB, query, "json", RECORDS)]
    assert [body["epoch"] for body in bodies] == [1, 2, 3]
    assert [len(body["items"]) for body in bodies] == [1, 0, 1]


def test_a_plot_without_a_single_estimate_is_empty(tmp_path: Path) -> None:
    picture = tmp_path / "empty.png"
    plot_answers(picture, JOB, None, [record(1, None)])
    assert picture.exists()
