"""Test ``dpstream simulate``: one object, deterministic by seed, and rejection of bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.cli.output import number
from tests.support.commands import Commands
from tests.support.small_run import EPOCHS, USERS, write_changes


@pytest.fixture
def changes(tmp_path: Path) -> Path:
    return write_changes(tmp_path / "changes.csv")


def rmse(epochs: list[dict[str, Any]]) -> float:
    errors = [epoch["estimate"] - epoch["ground_truth"] for epoch in epochs]
    return math.sqrt(sum(error**2 for error in errors) / len(errors))


def test_simulate_json_has_all_documented_keys(
    dpstream: Commands, job_file: Path, changes: Path
) -> None:
    result = dpstream("simulate", job_file, "--input", changes, "--seed", 7, "--json")
    assert result.errors == ""
    body = result.json
    assert body.keys() == {
        *("job", "guarantee", "assumes_changes", "rmse", "coverage", "coverage_over_time"),
        "epochs",
    }
    assert body["assumes_changes"] == 2
    held = [
        epoch["ci95_low"] <= epoch["ground_truth"] <= epoch["ci95_high"] for epoch in body["epochs"]
    ]
    assert body["coverage"] == pytest.approx(sum(held) / EPOCHS)
    assert body["job"] == "small"
    assert {"epsilon", "delta", "unit", "neighbors", "trust"} <= body["guarantee"].keys()
    assert [epoch["epoch"] for epoch in body["epochs"]] == list(range(1, EPOCHS + 1))
    for epoch in body["epochs"]:
        assert {
            *("epoch", "estimate", "standard_error", "ci95_low", "ci95_high"),
            *("ground_truth", "reports", "population"),
        } <= epoch.keys()
        assert epoch["population"] == USERS
        assert epoch["ci95_low"] < epoch["estimate"] < epoch["ci95_high"]
    assert [epoch["ground_truth"] for epoch in body["epochs"]] == [
        sum(user % EPOCHS < epoch for user in range(USERS)) for epoch in range(1, EPOCHS + 1)
    ]
    assert body["rmse"] == pytest.approx(rmse(body["epochs"]))


def test_simulation_is_repeatable_only_with_a_seed(
    dpstream: Commands, job_file: Path, changes: Path
) -> None:
    def estimates(*options: object) -> list[float]:
        body = dpstream("simulate", job_file, "--input", changes, "--json", *options).json
        return [epoch["estimate"] for epoch in body["epochs"]]

    assert estimates("--seed", 7) == estimates("--seed", 7)
    assert len({tuple(estimates(*options)) for options in (["--seed", 8], [], [])}) == 3


def test_smoothed_option_shows_smoothed_instead_of_published_estimates(
    dpstream: Commands, job_file: Path, changes: Path
) -> None:
    arguments = ("simulate", job_file, "--input", changes, "--seed", 7, "--smoothed")
    first = dpstream(*arguments, "--json").json["epochs"][0]
    header, row, *_ = dpstream(*arguments).output.splitlines()
    assert header.split()[1] == "smoothed"
    assert row.split()[1] == number(first["smoothed"]["estimate"])
    assert row.split()[5] == number(first["ground_truth"])


ITEM_USERS, ITEM_EPOCHS = 3_000, 2

LABELS = "[walk, bus, car, bike]"
COUNTS = {"walk": 1500, "bus": 900, "car": 600}


def job_file(
    folder: Path, parameters: str, protocol: str = "count_min", minimum: int = 1000
) -> Path:
    path = folder / "items.yaml"
    path.write_text(
        f"name: items\nprotocol: {protocol}\n"
        f"parameters: {{epsilon: 1, delta: 1e-6, {parameters}}}\n"
        f"epochs: {{count: {ITEM_EPOCHS}}}\nshuffle: {{minimum: {minimum}}}\n"
    )
    return path


def input_file(folder: Path, values: list[object]) -> Path:
    path = folder / "input.csv"
    rows = [
        f"user{user},{epoch},{value}\n"
        for epoch in range(1, ITEM_EPOCHS + 1)
        for user, value in enumerate(values)
    ]
    path.write_text("user,epoch,value\n" + "".join(rows))
    return path


def labels() -> list[object]:
    return [label for label, count in COUNTS.items() for _ in range(count)]


@pytest.mark.parametrize("protocol", ["count_min", "hadamard", "single_message"])
def test_simulate_items_json_has_all_documented_keys(
    dpstream: Commands, tmp_path: Path, protocol: str
) -> None:
    job = job_file(tmp_path, f"domain: {LABELS}", protocol)
    changes = input_file(tmp_path, labels())
    requested = ("--item", "bus", "--item", "bike", "--json")
    result = dpstream("simulate", job, "--input", changes, "--seed", 1, *requested)
    assert result.errors == ""
    body = result.json
    assert body["guarantee"]["unit"] == "epoch"
    assert body["trials"] == 1
    assert [epoch["epoch"] for epoch in body["epochs"]] == [1, 2]
    for epoch in body["epochs"]:
        assert (epoch["contributors"], epoch["population"]) == (ITEM_USERS, ITEM_USERS)
        assert epoch["messages_per_user"] == epoch["reports"] / ITEM_USERS >= 1
        assert 0 < epoch["mean_absolute_error"] <= epoch["max_error"]
        assert epoch["predicted_error"] > 0
        assert [each["name"] for each in epoch["estimates"]] == ["bus", "bike"]
        assert [each["ground_truth"] for each in epoch["estimates"]] == [900, 0]
        for each in epoch["estimates"]:
            assert abs(each["estimate"] - each["ground_truth"]) < 7 * each["standard_error"]
            assert each["ci95_low"] < each["estimate"] < each["ci95_high"]
    for name in ("predicted_error", "mean_absolute_error", "max_error"):
        assert body[name] == pytest.approx(np.mean([each[name] for each in body["epochs"]]))
    assert 0 <= body["coverage"] <= 1
    assert body["recall"] is None


def test_suppressed_windows_have_no_estimates_or_errors(dpstream: Commands, tmp_path: Path) -> None:
    job = job_file(tmp_path, f"domain: {LABELS}", minimum=ITEM_USERS + 1)
    changes = input_file(tmp_path, labels())
    arguments = ("simulate", job, "--input", changes, "--seed", 1)
    body = dpstream(*arguments, "--json").json
    for epoch in body["epochs"]:
        assert epoch["window_status"] == "suppressed"
        assert epoch["estimates"] == []
        assert (epoch["mean_absolute_error"], epoch["predicted_error"]) == (None, None)
    assert (body["rmse"], body["mean_absolute_error"], body["coverage"]) == (None, None, None)
    result = dpstream(*arguments)
    assert result.code == 0
    assert "suppressed" in result.output
    assert "suppressed windows" in result.output


@pytest.mark.parametrize("complete", [True, False])
def test_simulation_states_which_items_it_covers_and_how_many_users_have_none(
    dpstream: Commands, tmp_path: Path, complete: bool
) -> None:
    job, changes = tmp_path / "job.yaml", tmp_path / "changes.csv"
    job.write_text(
        "name: items\nprotocol: sampled_response\n"
        f"parameters: {{epsilon: 4, domain: {LABELS}, complete: {str(complete).lower()}}}\n"
        f"epochs: {{count: {ITEM_EPOCHS}}}\n"
    )
    rows = [f"user{user},{1 + (user < 7)},bus\n" for user in range(500)] + ["user9,2,\n"]
    changes.write_text("user,epoch,value\n" + "".join(rows))
    result = dpstream("simulate", job, "--input", changes, "--seed", 1)
    assert result.code == 0, result.errors
    words = " ".join(result.output.split())
    assert ("8 of 500 users have no item at some epoch" in words) == complete
    assert ("every user in the input has a nonzero value" in words) == (not complete)
    assert "largest items at all epochs root mean squared error " in words
    assert " root mean squared error, every item " in words
    assert "a count of" not in words  # errors of large counts are larger
    assert words.count("; errors of different epochs are nearly independent") == 2
    assert "correlated" not in words
