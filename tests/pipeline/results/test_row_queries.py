"""Test rows of a job with measures: numbers, means and shares of all users and of groups."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import Estimate
from dpstream.aggregators.panel_estimates import PanelEstimates
from dpstream.pipeline.cli.output import number
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

JOB_FILE = """
name: app
protocol: panels
epochs: {count: 8, start: 2026-01-05, length: P7D}
parameters: {epsilon: 4}
measures:
  wau: {type: active}
  mau: {type: active, within: 4}
  spent: {type: sum, number: amount, mean: {low: 0, high: 50}}
attributes: {platform: {values: [ios], public: true}}
by: [platform]
ratios: {stickiness: {numerator: wau, denominator: mau}}
"""
NUMBERS = {
    "wau": (2_000.0, 100.0),
    "wau: platform=ios": (1_600.0, 80.0),
    "wau: platform=other": (300.0, 30.0),
    "mau": (4_000.0, 100.0),
    "mau: platform=ios": (3_000.0, 80.0),
    "mau: platform=other": (1_000.0, 60.0),
    "spent": (12.5, 0.5),
    "spent: platform=ios": (15.0, 0.6),
    "spent: platform=other": (5.0, 0.9),
}


@pytest.fixture
def app(dpstream: Commands, cluster: MemoryCluster, tmp_path: Path) -> str:
    """Deploy a job with two published epochs; return its name."""
    path = tmp_path / "app.yaml"
    path.write_text(JOB_FILE)
    result = dpstream("deploy", path)
    assert result.code == 0, result.errors
    for epoch in (1, 2):
        publish(cluster, epoch, {})
    return "app"


def publish(cluster: MemoryCluster, epoch: int, changed: dict[str, float]) -> None:
    job = find_deployed(cast(Cluster, cluster), "app")
    assert isinstance(job.domain, PanelDomain)
    sizes = {"": 10_000.0, "ios": 7_000.0, "other": 3_000.0}
    rows = job.domain.rows
    numbers = np.array([NUMBERS[row.label] for row in rows])
    numbers[:, 0] = [
        changed.get(row.label, number) for row, (number, _) in zip(rows, numbers, strict=True)
    ]
    numbers[np.isnan(numbers[:, 0])] = np.nan
    users = np.array([sizes[row.attributes.get("platform", "")] for row in rows])
    estimate = PanelEstimates(
        numbers[:, 0], numbers[:, 1], users, (users // 3).astype(int), 10_000, 10_000
    )
    published = EstimateRecord(
        job.deployment, epoch, WindowStatus.RELEASED, epoch, 10_000, 10_000, estimate, {}
    )
    cluster.append(job.topic(Role.ESTIMATES), published.to_bytes())


def test_table_has_totals_and_groups_if_requested(dpstream: Commands, app: str) -> None:
    lines = dpstream("estimates", app).output.replace(" partial_window", "").splitlines()
    assert [line.split()[-4] for line in lines[1:4]] == ["2,000", "4,000", "12.50"]
    assert [name in line for name, line in zip(("wau", "mau", "spent"), lines[1:4], strict=True)]
    shares = dpstream("estimates", app, "--measure", "wau", "--by", "platform", "--share").output
    assert "% of group's users" in shares.splitlines()[0]
    assert [line.split()[-4] for line in shares.splitlines()[1:3]] == ["22.9", "10.0"]
    only = dpstream("estimates", app, "--where", "platform=ios", "--measure", "mau", "--csv", "-")
    (row, _) = csv.DictReader(io.StringIO(only.output))
    assert (row["measure"], row["platform"], row["statistic"]) == ("mau", "ios", "count")
    assert (float(row["estimate"]), float(row["standard_error"])) == (3_000.0, 80.0)


def test_changes_of_groups_have_intervals_of_their_own(dpstream: Commands, app: str) -> None:
    asked = ("estimates", app, "--measure", "wau", "--by", "platform", "--change", 1)
    ios, other = csv.DictReader(io.StringIO(dpstream(*asked, "--csv", "-").output))
    assert (ios["epoch"], ios["platform"], float(ios["change"])) == ("2", "ios", 0.0)
    assert float(ios["standard_error"]) > 0
    assert other["platform"] == "other"
    refused = dpstream(*asked, "--share")
    assert (refused.code, "--change of groups applies to numbers" in refused.errors) == (2, True)


@pytest.mark.parametrize("chosen", [("--epoch", 3), ("--date", "2026-01-21")])
def test_one_epoch_has_all_groups_with_shares_and_changes(
    dpstream: Commands, cluster: MemoryCluster, app: str, chosen: tuple[str, object]
) -> None:
    publish(
        cluster, 3, {"wau": 1_990.0, "wau: platform=ios": 1_400.0, "wau: platform=other": math.nan}
    )
    publish(cluster, 4, {})
    result = dpstream("estimates", app, "--by", "platform", *chosen)
    assert result.code == 0, result.errors
    heading, _, *rows, _, note, reason = result.output.splitlines()
    assert heading == "wau in the week of January 19, 2026"
    assert [" ".join(row.split()) for row in rows[:1]] == [
        "ios 1,400 1,243 to 1,557 20.0 -200 " + " ".join(rows[0].split()[-3:])
    ]
    low, _, high = rows[0].split()[-3:]
    changes = dpstream("estimates", app, "--by", "platform", "--change", 1, "--csv", "-").output
    change = next(row for row in csv.DictReader(io.StringIO(changes)) if row["epoch"] == "3")
    assert (low, high) == tuple(number(float(change[f"ci95_{end}"])) for end in ("low", "high"))
    assert rows[1].split() == ["other", *"-----"]
    assert rows[2].split()[:2] == ["all", "1,990"]
    assert rows[2].split()[5:7] == ["19.9", "-10.0"]
    assert note == "change: since the week of January 12, 2026, with its own interval"
    assert reason == "-: too few devices of the group answered"
    first = dpstream("estimates", app, "--by", "platform", "--epoch", 1).output.splitlines()
    assert first[2].split()[-2:] == ["-", "-"]
    means = dpstream("estimates", app, "--by", "platform", "--measure", "spent", *chosen).output
    assert means.splitlines()[2].split()[:2] == ["ios", "15.0"]
    assert means.splitlines()[2].split()[5] == "-"
    (row,) = csv.DictReader(
        io.StringIO(
            dpstream("estimates", app, *chosen, "--where", "platform=ios", "--csv", "-").output
        )
    )
    assert (row["epoch"], float(row["estimate"])) == ("3", 1_400.0)


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (
            ("--epoch", 3),
            1,
            "no estimate in the week of January 19, 2026 (epoch 3); the latest is the",
        ),
        (("--date", "2026-01-04"), 2, "expected a date from 2026-01-05 on, when epoch 1 starts"),
        (("--date", "tomorrow"), 2, "expected a date or time such as 2026-07-20"),
        (("--date", "2026-01-05", "--epoch", 1), 2, "mutually exclusive"),
        (("--epoch", 1, "--last", 2), 2, "select one epoch"),
    ],
)
def test_epochs_that_cannot_be_shown_are_explained(
    dpstream: Commands, app: str, options: tuple[object, ...], code: int, reason: str
) -> None:
    result = dpstream("estimates", app, "--by", "platform", *options)
    assert (result.code, reason in result.errors) == (code, True), result.errors


def test_files_have_a_column_for_each_attribute(
    dpstream: Commands, app: str, tmp_path: Path
) -> None:
    rows = [*csv.DictReader(io.StringIO(dpstream("estimates", app, "--csv", "-").output))]
    assert len(rows) == 2 * len(NUMBERS)
    assert {row["statistic"] for row in rows if row["measure"] == "spent"} == {"mean"}
    assert [row["platform"] for row in rows[:3]] == ["", "ios", "other"]
    shares = [
        *csv.DictReader(io.StringIO(dpstream("estimates", app, "--share", "--csv", "-").output))
    ]
    assert {row["measure"] for row in shares} == {"wau", "mau"}
    path = tmp_path / "app.parquet"
    assert dpstream("estimates", app, "--parquet", path).code == 0
    table = parquet.read_table(path)
    assert table.column("platform").to_pylist()[:3] == [None, "ios", "other"]
    first = json.loads(
        dpstream("estimates", app, "--by", "platform", "--json").output.split("\n")[0]
    )
    assert first["rows"][0]["measure"] == "wau"
    assert (first["rows"][0]["platform"], first["rows"][0]["statistic"]) == ("ios", "count")
    assert "estimate" in json.loads(dpstream("estimates", app, "--json").output.split("\n")[0])


def test_declared_ratios_are_known_by_name_in_all_groups(dpstream: Commands, app: str) -> None:
    output = dpstream("estimates", app, "--ratio", "stickiness", "--csv", "-").output
    rows = [*csv.DictReader(io.StringIO(output))]
    assert [row["item"] for row in rows[:3]] == [
        *("stickiness", "stickiness: platform=ios", "stickiness: platform=other")
    ]
    assert float(rows[0]["estimate"]) == 0.5
    compared = ("--difference", "platform=ios,platform=other")
    output = dpstream("estimates", app, "--ratio", "stickiness", *compared).output
    assert "more of platform=ios than of platform=other (0.533 and 0.3)" in output


def test_sums_over_a_period_are_those_of_events_per_user(dpstream: Commands, app: str) -> None:
    asked = ("estimates", app, "--interval", 2, "--aggregate")
    (row,) = csv.DictReader(
        io.StringIO(dpstream(*asked, "sum", "--measure", "spent", "--csv", "-").output)
    )
    assert (row["first_epoch"], row["statistic"], float(row["sum"])) == ("1", "mean", 25.0)
    assert float(row["standard_error"]) > 0.5 * math.sqrt(2)
    table = dpstream(*asked, "sum", "--measure", "spent", "--by", "platform").output
    assert [line.split()[-4] for line in table.splitlines()[1:3]] == ["30.0", "10.0"]
    assert "sum over 2 epochs, starting with the one shown" in table
    (last,) = csv.DictReader(
        io.StringIO(dpstream(*asked, "last", "--measure", "mau", "--csv", "-").output)
    )
    assert (last["epoch"], float(last["estimate"])) == ("2", 4_000.0)


def test_totals_are_those_of_all_users_and_of_the_users_of_groups(
    dpstream: Commands, app: str
) -> None:
    def total(*options: object) -> list[dict[str, str]]:
        output = dpstream("estimates", app, "--total", *options, "--csv", "-").output
        return [*csv.DictReader(io.StringIO(output))]

    rows = total("--last", 1)
    assert [row["platform"] for row in rows] == ["", "ios", "other"]
    assert {(row["measure"], row["statistic"]) for row in rows} == {("spent", "total")}
    # Means of 12.5, 15 and 5, of 10,000 users, 7,000 and 3,000.
    assert [float(row["estimate"]) for row in rows] == [125_000, 105_000, 15_000]
    assert [float(row["standard_error"]) for row in rows] == pytest.approx([5_000, 4_200, 2_700])
    assert float(rows[0]["ci95_high"]) == pytest.approx(125_000 + 1.96 * 5_000, rel=1e-4)
    (month,) = total("--measure", "spent", "--interval", 2, "--aggregate", "sum")
    assert (float(month["sum"]), month["first_epoch"]) == (250_000, "1")
    printed = dpstream("estimates", app, "--total", "--measure", "spent").output
    assert [line.split()[-4] for line in printed.splitlines()[1:3]] == ["125,000", "125,000"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--measure", "wau"], "counts users: a sum over 4 epochs would count the same ones again"),
        (["--measure", "wau"], "Use --measure mau\n"),
        (["--measure", "recent"], "is within 2 epochs: a sum over 4 epochs would add the same"),
        (["--measure", "most"], "{type: max, within: 4} with the other keys of most"),
        (["--ratio", "spent/wau"], "measure wau counts users"),
        ([], "measure wau counts users"),
        ([], "For another measure alone, add --measure NAME"),
        (["--measure", "spent", "--change", "1"], "how the errors of two windows are correlated"),
    ],
)
def test_sums_of_other_measures_are_refused_with_what_to_declare(
    dpstream: Commands, tmp_path: Path, options: list[str], message: str
) -> None:
    path = tmp_path / "app.yaml"
    measures = (
        "  recent: {type: count, within: 2, mean: {low: 0, high: 9}}\n"
        "  most: {type: max, number: amount, mean: {low: 0, high: 50}}\nattributes"
    )
    path.write_text(JOB_FILE.replace("attributes", measures))
    assert dpstream("deploy", path).code == 0
    refused = dpstream("estimates", "app", "--interval", 4, "--aggregate", "sum", *options)
    assert (refused.code, message in refused.errors) == (1, True), refused.errors


def test_sum_with_a_missing_epoch_is_refused(
    dpstream: Commands, cluster: MemoryCluster, app: str
) -> None:
    job = find_deployed(cast(Cluster, cluster), app)
    published = EstimateRecord(job.deployment, 3, WindowStatus.SUPPRESSED, 3, 9, 10_000, None, {})
    cluster.append(job.topic(Role.ESTIMATES), published.to_bytes())
    asked = ("estimates", app, "--interval", 3, "--measure", "spent", "--csv", "-")
    (mean,) = csv.DictReader(io.StringIO(dpstream(*asked).output))
    assert (float(mean["mean"]), mean["flags"]) == (12.5, "incomplete")
    (total,) = csv.DictReader(io.StringIO(dpstream(*asked, "--aggregate", "sum").output))
    assert (total["sum"], total["flags"]) == ("", "incomplete")
    assert total["refused"] == "too few devices answered in some epoch of the period"


@pytest.mark.parametrize(
    ("options", "flagged"),
    [
        (["--measure", "mau", "--by", "platform"], True),
        (["--measure", "mau", "--share"], True),
        (["--measure", "mau", "--interval", 2], True),
        (["--ratio", "stickiness"], True),
        (["--measure", "wau"], False),
    ],
)
def test_windows_that_start_before_the_first_epoch_are_flagged(
    dpstream: Commands, app: str, options: list[object], flagged: bool
) -> None:
    rows = csv.DictReader(io.StringIO(dpstream("estimates", app, *options, "--csv", "-").output))
    assert {row["flags"] for row in rows} == {"partial_window" if flagged else ""}
    printed = dpstream("estimates", app, *options)
    assert ("partial_window" in printed.output) == flagged
    words = "partial_window: the first 3 weeks of mau cover less than 4 weeks of events. If there"
    assert (words in printed.errors) == flagged


@pytest.mark.parametrize("history", ["", "history: complete\n"])
def test_windows_of_a_single_measure_are_flagged_unless_history_is_complete(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, history: str
) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "name: one\nepochs: {count: 8}\nparameters: {epsilon: 4}\n"
        + history
        + "measures: {mau: {type: active, within: 3}}\n"
    )
    assert dpstream("deploy", path).code == 0
    job = find_deployed(cast(Cluster, cluster), "one")
    for epoch in (1, 2, 3):
        estimate = Estimate.around(500.0, 10.0, 19.6, 900, 1_000)
        record = EstimateRecord(
            job.deployment, epoch, WindowStatus.RELEASED, epoch, 900, 1_000, estimate, {}
        )
        cluster.append(job.topic(Role.ESTIMATES), record.to_bytes())
    rows = csv.DictReader(io.StringIO(dpstream("estimates", "one", "--csv", "-").output))
    expected = ["", "", ""] if history else ["partial_window", "partial_window", ""]
    assert [row["flags"] for row in rows] == expected
    assert ("partial_window" in dpstream("estimates", "one").output) == (not history)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--measure", "dau"], "--measure: got 'dau'; expected one of: wau, mau, spent"),
        (["--by", "plan"], "--by: got 'plan'; expected one of: platform"),
        (["--where", "platform"], "--where: got 'platform'; expected ATTRIBUTE=VALUE"),
        (["--by", "platform", "--item", "wau"], "remove queries"),
        (["--measure", "spent", "--share"], "--share requires a measure that counts users"),
        (["--measure", "wau", "--total"], "--total requires a measure of type count or sum"),
        (["--total", "--share"], "--total shows numbers of events or their sums"),
        (["--total", "--change", "1"], "--total shows numbers of events or their sums"),
        (
            ["--total", "--item", "wau"],
            "--total requires a job with measures, without another query",
        ),
    ],
)
def test_unknown_measures_and_groups_are_rejected(
    dpstream: Commands, app: str, options: list[str], message: str
) -> None:
    wrong = dpstream("estimates", app, *options)
    assert wrong.code != 0
    assert message in wrong.errors
