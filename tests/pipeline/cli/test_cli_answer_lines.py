"""Test items, ranges and quantiles on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

EPOCHS = 4


@pytest.fixture
def hours(tmp_path: Path) -> Path:
    path = tmp_path / "hours.yaml"
    path.write_text(
        "name: hours\nprotocol: range_values\n"
        "parameters: {epsilon: 8, max_changes: 1, low: 0, high: 80, buckets: 8}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )
    return path


@pytest.fixture
def modes(tmp_path: Path) -> Path:
    path = tmp_path / "modes.yaml"
    path.write_text(
        "name: modes\nprotocol: hadamard_values\n"
        "parameters: {epsilon: 8, max_changes: 0, domain: [walk, bus, car]}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )
    return path


def test_estimates_command_accepts_the_query_options(
    dpstream: Commands, cluster: MemoryCluster, modes: Path, tmp_path: Path
) -> None:
    assert dpstream("deploy", modes).code == 0
    deployed = find_deployed(cast(Cluster, cluster), "modes")
    for epoch, values in enumerate([[10.0, 60.0, 30.0], [20.0, -5.0, 85.0]], start=1):
        estimate = ItemEstimates(np.array(values), 5.0, 9.8, 70, 100)
        published = EstimateRecord(
            deployed.deployment,
            epoch,
            WindowStatus.RELEASED,
            0,
            90,
            100,
            estimate,
            {"epsilon": 8.0},
        )
        cluster.append(deployed.topic(Role.ESTIMATES), published.to_bytes())
    result = dpstream("estimates", "modes", "--top", 1, "--norm-sub", "--json")
    bodies = [json.loads(line) for line in result.output.splitlines()]
    assert [[each["name"] for each in body["items"]] for body in bodies] == [["bus"], ["car"]]
    assert [body["items"][0]["norm_sub"] for body in bodies] == [60, 82.5]
    assert (
        len(dpstream("estimates", modes, "--item", "walk", "--item", "car").output.splitlines())
        == 5
    )
    picture = tmp_path / "modes.png"
    drawn = dpstream("estimates", "modes", "--plot", picture).errors
    assert f"wrote {picture}" in drawn
    assert "assumes at most 0 changes per user after the first value" in drawn
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong_uses: list[tuple[list[object], str]] = [
        (["--item", "buss"], "did you mean 'bus'?"),
        (["--quantile", "0.5"], "--quantile requires a job over numbers"),
        (["--plot", picture, "--follow"], "remove --follow"),
    ]
    for options, message in wrong_uses:
        wrong = dpstream("estimates", "modes", *options)
        assert (wrong.code, wrong.errors.count("\n")) == (2, 1)
        assert message in wrong.errors


def test_bucket_count_must_be_a_power_of_two(dpstream: Commands, hours: Path) -> None:
    """Rounded buckets would have unintended edges."""
    assert (
        "values are in 8 buckets, each 10 wide" in dpstream("plan", hours, "--json").json["notes"]
    )
    hours.write_text(hours.read_text().replace("buckets: 8", "buckets: 24"))
    result = dpstream("plan", hours)
    assert (result.code, result.output) == (2, "")
    wrong = "parameters.buckets: is 24; expected a power of two, such as 16 or 32"
    assert result.errors == f"error: {hours}:3: {wrong}\n"
