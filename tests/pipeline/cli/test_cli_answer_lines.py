"""Items, ranges and quantiles on the command line."""

from __future__ import annotations

import csv
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
from dpstream.pipeline.cli.smoothed_lines import SMOOTHED
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import load_job, parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployed_jobs import find_deployed
from dpstream.pipeline.operations.up.curves import (
    MOST_CURVES,
    curves_of,
    draw_curves,
    plotted_query,
)
from dpstream.pipeline.results.asked import Asked, make_query
from dpstream.pipeline.results.questions import Count, Items, Query
from dpstream.pipeline.results.smoothing import smoothed_horizon
from dpstream.pipeline.simulation.memory import MemoryDriver
from dpstream.pipeline.simulation.simulate import SimulatedCluster
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.value_domains import BOOLEAN
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster
from tests.support.small_run import generators, job_text, write_changes

EPOCHS = 4
USERS = 400


@pytest.fixture
def dpstream(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("COLUMNS", "80")
    return Commands(capsys)


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


@pytest.fixture
def mode_changes(tmp_path: Path) -> Path:
    path = tmp_path / "modes.csv"
    rows = [f"u{user},1,{('walk', 'bus', 'car', 'car')[user % 4]}\n" for user in range(USERS)]
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


@pytest.mark.verify
def test_quantiles_of_several_trials_are_summed_up(
    dpstream: Commands, hours: Path, hour_changes: Path
) -> None:
    arguments = ("simulate", hours, "--input", hour_changes, "--seed", 1, "--trials", 2)
    body = dpstream(*arguments, "--quantile", "0.5", "--json").json
    assert body["trials"] == 2
    assert body["predicted_rmse"] is None
    assert [epoch["quantiles"][0]["truth"] for epoch in body["epochs"]] == [20, 20, 60, 60]
    assert "answers at all epochs of 2 trials" in dpstream(*arguments, "--quantile", "0.5").output


def test_the_largest_items_and_norm_sub_of_a_simulation(
    dpstream: Commands, modes: Path, mode_changes: Path
) -> None:
    arguments = ("simulate", modes, "--input", mode_changes, "--seed", 1)
    body = dpstream(*arguments, "--top", 2, "--norm-sub", "--json").json
    for epoch in body["epochs"]:
        assert len(epoch["items"]) == 2
        assert epoch["items"][0]["estimate"] >= epoch["items"][1]["estimate"]
        assert all(0 <= each["norm_sub"] <= USERS for each in epoch["items"])
        assert epoch["simultaneous_half_width"] > 0
    assert "norm-sub" in dpstream(*arguments, "--norm-sub").output.splitlines()[0]


def test_published_estimates_are_asked_the_same(
    dpstream: Commands, modes: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    cluster = use_memory_cluster(monkeypatch)
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
    assert dpstream("estimates", "modes", "--plot", picture).errors == f"{picture} is written\n"
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


def test_looking_back_answers_the_same_questions(
    dpstream: Commands,
    modes: Path,
    mode_changes: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    cluster = use_memory_cluster(monkeypatch)
    assert dpstream("deploy", modes).code == 0
    deployed = find_deployed(cast(Cluster, cluster), "modes")
    changes = load_change_log(mode_changes, domain=deployed.domain, last_epoch=EPOCHS)
    run = SimulatedCluster(deployed, generators)
    producer = Producer(
        deployed, None, name="p", transport=MemoryDriver(run.log), generators=generators
    )
    producer.enrol(changes.users)
    for epoch, values in enumerate(changes.values_by_epoch(), 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
        run.settle()
    producer.shut()
    for role in (Role.MANIFESTS, Role.PARTIALS, Role.ESTIMATES):
        for value in run.log.values(role):
            cluster.append(deployed.topic(role), value)
    horizon = MemoryDriver(run.log).run(smoothed_horizon(deployed))

    rows = list(
        csv.DictReader(
            dpstream("estimates", modes, "--smoothed", "--format", "csv").output.splitlines()
        )
    )
    assert [float(row["smoothed"]) for row in rows] == horizon.estimates.values.ravel().tolist()
    car = ("estimates", modes, "--smoothed", "--item", "car")
    bodies = [json.loads(line) for line in dpstream(*car, "--json").output.splitlines()]
    assert [body["items"][0]["estimate"] for body in bodies] == (
        horizon.estimates.values[:, 2].tolist()
    )
    assert [body["items"][0]["standard_deviation"] for body in bodies] == (
        horizon.estimates.standard_deviations.tolist()
    )
    picture = tmp_path / "smoothed.png"
    said = dpstream("estimates", modes, "--smoothed", "--plot", picture)
    assert said.errors == f"{picture} is written\n"
    assert picture.read_bytes().startswith(b"\x89PNG")
    header, *lines, blank, footnote = said.output.splitlines()
    assert header.split()[:3] == ["epoch", "item", "estimate"]
    assert (len(lines), blank, footnote) == (3 * EPOCHS, "", SMOOTHED)
    assert max(map(len, said.output.splitlines())) <= 80
    for row, epoch in zip(lines[::3], horizon.estimates.values, strict=True):
        assert deployed.domain.items is not None
        assert row.split()[1:3] == [deployed.domain.items[epoch.argmax()], number(epoch.max())]


def test_numbers_outside_of_the_range_are_bad_rows(
    dpstream: Commands, hours: Path, tmp_path: Path
) -> None:
    changes = tmp_path / "bad.csv"
    changes.write_text("user,epoch,value\nu1,1,79.9\nu2,1,80\nu3,2,many\n")
    said = dpstream("simulate", hours, "--input", changes)
    assert said.code == 2
    assert "bad.csv:3: value '80' is not from 0 to below 80" in said.errors
    assert "bad.csv:4: value 'many' is not a number" in said.errors


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


def test_wrong_options_are_refused_in_one_line(
    dpstream: Commands, hours: Path, hour_changes: Path
) -> None:
    for options in (["--range", "0:15"], ["--top", 2], ["--quantile", "2"]):
        said = dpstream("simulate", hours, "--input", hour_changes, *options)
        assert said.code == 2
        assert said.errors.startswith(f"error: {options[0]}")
        assert said.errors.count("\n") == 1


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


def test_a_plot_is_a_picture(
    dpstream: Commands, hours: Path, hour_changes: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "hours.png"
    said = dpstream("simulate", hours, "--input", hour_changes, "--plot", picture)
    assert said.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = dpstream("simulate", hours, "--input", hour_changes, "--plot", tmp_path / "hours.doc")
    assert wrong.code == 2
    assert "hours.doc" in wrong.errors


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


def test_lines_of_csv_have_one_answer_each() -> None:
    query = make_query(JOB.domain, Asked(["item 1", "item 3"]), norm_sub=True)
    assert query is not None
    rows = list(csv.DictReader(answer_lines(JOB, query, "csv", RECORDS)))
    assert [(row["epoch"], row["item"], row["estimate"]) for row in rows] == [
        ("1", "item 1", "0.0"),
        ("1", "item 3", "2.0"),
        ("2", "", ""),
        ("3", "item 1", "100.0"),
        ("3", "item 3", "-1.0"),
    ]
    assert rows[2]["fate"] == "too small"
    assert rows[3]["norm_sub"] == "100.0"
    assert rows[0]["flags"] == "gap"


def test_lines_of_json_are_epochs() -> None:
    query = make_query(JOB.domain, Asked(["item 2"]))
    assert query is not None
    bodies = [json.loads(line) for line in answer_lines(JOB, query, "json", RECORDS)]
    assert [body["epoch"] for body in bodies] == [1, 2, 3]
    assert [len(body["items"]) for body in bodies] == [1, 0, 1]


def test_a_plot_has_a_curve_and_a_band_for_at_most_ten_items_and_breaks_at_gaps() -> None:
    drawn = plotted_query(JOB.domain, None, RECORDS)
    assert isinstance(drawn.question, Items)
    assert len(drawn.question.items or ()) == MOST_CURVES
    truth = np.arange((EPOCHS + 1) * 12).reshape(-1, 12)
    curves = curves_of(drawn, RECORDS, truth)
    assert curves[0].name == "item 1"
    assert np.isnan(curves[0].values).tolist() == [False, True, False]
    assert curves[0].truth is not None
    assert curves[0].truth[0] == 12
    figure = draw_curves(JOB, JOB.guarantee(), drawn.question, [1, 2, 3], curves)
    (axes,) = figure.axes
    assert len(axes.collections) == MOST_CURVES
    assert len(axes.lines) == 2 * MOST_CURVES
    solid = axes.lines[::2]
    assert len({str(line.get_color()) for line in solid}) == MOST_CURVES
    assert axes.get_xlabel() == "week (UTC)"


def test_a_plot_of_the_largest_items_and_of_ranges_shows_what_was_asked(hours: Path) -> None:
    few = plotted_query(JOB.domain, make_query(JOB.domain, Asked(top=3)), RECORDS)
    assert isinstance(few.question, Items)
    assert len(few.question.items or ()) == 3
    job = load_job(hours)
    asked = make_query(job.domain, Asked(ranges=["0:40", "40:80"]))
    kept = plotted_query(job.domain, asked, [])
    assert asked is not None
    assert kept.question == asked.question


def test_a_plot_without_a_single_estimate_is_empty(tmp_path: Path) -> None:
    picture = tmp_path / "empty.png"
    plot_answers(picture, JOB, None, [record(1, None)])
    assert picture.exists()
