"""Test ratios of a job's measures to those of another job."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.results.ratios import Amount, ratio
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

SHOP = """
name: shop
protocol: panels
epochs: {count: 8, start: 2026-01-19, length: P1W}
parameters: {epsilon: 2}
population: town
measures:
  bought: {type: active}
  spent: {type: sum, number: amount, mean: {low: 0, high: 50}}
attributes: {platform: {values: [ios], public: true}}
by: [platform]
"""
APP = """
name: app
protocol: panels
epochs: {count: 12, start: 2026-01-05, length: 7d}
parameters: {epsilon: 2}
population: town
measures:
  wau: {type: active}
  mau: {type: active, within: 4}
attributes: {platform: {values: [ios], public: true}}
by: [platform]
"""
VISITS = """
name: visits
epochs: {count: 12, start: 2026-01-05, length: P1W}
parameters: {epsilon: 2}
population: town
measures: {seen: {type: active}}
"""
NUMBERS = {"bought": 300.0, "spent": 12.0, "wau": 2_000.0, "mau": 4_000.0}


def deploy(
    dpstream: Commands, cluster: MemoryCluster, folder: Path, text: str, epochs: int
) -> DeployedJob:
    """Deploy a job and publish epochs whose numbers grow by the number of the epoch."""
    path = folder / "job.yaml"
    path.write_text(text)
    result = dpstream("deploy", path, "--yes")
    assert result.code == 0, result.errors
    job = find_deployed(cast(Cluster, cluster), text.split()[1])
    for epoch in range(1, epochs + 1):
        estimate: Estimate | PanelEstimates = Estimate.around(
            1_000.0 * epoch, 50.0, 98.0, 9_000, 10_000
        )
        if isinstance(job.domain, PanelDomain):
            rows = job.domain.rows
            users = np.array([5_000.0 if row.attributes else 10_000.0 for row in rows])
            values = np.array([NUMBERS[row.measure] * epoch for row in rows])
            deviations = np.array([0.1 if row.measure == "spent" else 40.0 for row in rows])
            estimate = PanelEstimates(
                values, deviations, users, (users // 2).astype(int), 10_000, 10_000
            )
        published = EstimateRecord(
            job.deployment, epoch, WindowStatus.RELEASED, epoch, 9_000, 10_000, estimate, {}
        )
        cluster.append(job.topic(Role.ESTIMATES), published.to_bytes())
    return job


@pytest.fixture
def jobs(dpstream: Commands, cluster: MemoryCluster, tmp_path: Path) -> None:
    # The third week of app and of visits is the first one of shop.
    for text, epochs in ((SHOP, 2), (APP, 3), (VISITS, 4)):
        deploy(dpstream, cluster, tmp_path, text, epochs)


def rows_of(dpstream: Commands, *options: object) -> list[dict[str, str]]:
    result = dpstream("estimates", "shop", *options, "--csv", "-")
    assert result.code == 0, result.errors
    return list(csv.DictReader(io.StringIO(result.output)))


@pytest.mark.usefixtures("jobs")
def test_numbers_are_divided_by_those_of_the_same_time(dpstream: Commands) -> None:
    first, second = rows_of(dpstream, "--measure", "bought", "--per", "app:mau")
    assert (first["epoch"], first["item"], first["statistic"]) == ("1", "bought/app:mau", "ratio")
    expected = ratio(Amount(300.0, 40.0**2), Amount(12_000.0, 40.0**2))
    found = tuple(float(first[name]) for name in ("estimate", "ci95_low", "ci95_high"))
    assert found == pytest.approx(expected.triple)
    assert (second["estimate"], second["refused"]) == (
        "",
        "job app has no estimate at this time",
    )
    # The second week of shop is the fourth of visits, which has one measure and no items.
    _, visits = rows_of(dpstream, "--measure", "bought", "--per", "visits")
    assert visits["item"] == "bought/visits:seen"
    assert float(visits["estimate"]) == 600 / 4_000


@pytest.mark.usefixtures("jobs")
def test_groups_are_divided_by_the_same_groups(dpstream: Commands) -> None:
    options = ("--measure", "spent", "--by", "platform", "--per", "app:wau")
    ios, other, *_ = rows_of(dpstream, *options)
    assert ios["item"] == "spent/app:wau: platform=ios"
    # A mean is divided as the sum over its users.
    assert float(ios["estimate"]) == float(other["estimate"]) == 12 * 5_000 / 6_000
    table = dpstream("estimates", "shop", *options).output
    assert "spent/app:wau: platform=ios" in table
    body = json.loads(dpstream("estimates", "shop", *options, "--json").output.splitlines()[0])
    assert body["ratios"][0]["name"] == "spent/app:wau: platform=ios"
    wide, _ = rows_of(dpstream, "--measure", "bought", "--per", "app", "--simultaneous")
    assert wide["item"] == "bought/app:wau"


@pytest.mark.usefixtures("jobs")
def test_longer_periods_are_those_of_both_jobs(dpstream: Commands) -> None:
    (row,) = rows_of(dpstream, "--measure", "bought", "--per", "visits", "--interval", 2)
    assert (row["first_epoch"], float(row["mean"])) == ("1", 450 / 3_500)
    wrong = dpstream("estimates", "shop", "--per", "visits", "--interval", 3)
    assert (wrong.code, "start at other times" in wrong.errors) == (2, True), wrong.errors


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        (("town", "village"), [], "about population town, and job app about population village"),
        (("7d", "P1D"), [], "epochs.length is P7D in job shop and P1D in job app"),
        (("01-05", "01-06"), [], "such as 2026-01-19 and 2026-01-13; expected jobs"),
        (("7d}", "7d, timezone: Europe/Berlin}"), [], "epochs.timezone is UTC in job shop and"),
        ((", start: 2026-01-05, length: 7d", ""), [], "job app has no calendar"),
        (("values: [ios]", "values: [mac]"), ["--by", "platform"], "and job app (ios, mac)"),
        (("[ios], public: true", "[ios]"), ["--by", "platform"], "none, private, public"),
        (("platform", "os"), ["--by", "platform"], "job app has no attribute platform"),
        (("mau", "month"), [], "job app has no measure 'mau'; expected one of: wau, month"),
        (("", ""), ["--share"], "remove queries, --share"),
        (("", ""), ["--item", "wau"], "remove queries"),
        (("", ""), ["--cohorts", "platform"], "--cohorts and --follow"),
    ],
)
def test_other_people_calendars_and_groups_are_refused(
    dpstream: Commands,
    cluster: MemoryCluster,
    tmp_path: Path,
    changed: tuple[str, str],
    options: list[str],
    message: str,
) -> None:
    deploy(dpstream, cluster, tmp_path, SHOP, 1)
    deploy(dpstream, cluster, tmp_path, APP.replace(*changed), 0)
    refused = dpstream("estimates", "shop", "--per", "app:mau", *options)
    assert refused.code != 0
    assert message in refused.errors
