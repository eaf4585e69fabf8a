"""Test ``dpstream simulate``: one object, deterministic by seed, and rejection of bad input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

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
