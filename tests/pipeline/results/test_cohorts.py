"""Test retention by cohort: shares, marks, the printed triangle and its files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from pyarrow import parquet

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.results.cohorts import CohortError, Cohorts, CohortShare
from dpstream.pipeline.results.pairs import measure_sides
from dpstream.pipeline.results.ratios import DerivedNumber
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

JOB_FILE = """
name: search
epochs: {count: 4, start: 2026-01-01, length: P1M}
trust: shuffle
parameters: {epsilon: 1, delta: 1.0e-6}
shuffle: {minimum: 1000}
measures:
  used: {type: active, event: [search]}
attributes:
  cohort: {first_seen: P1M, event: [search]}
by: [cohort]
"""

DEVIATION = 20.0


def values(job: DeployedJob, shares: dict[str, tuple[float, float]]) -> np.ndarray:
    """Return the cells of a job, given the users and the share of each cohort."""
    found = np.zeros(job.domain.size - 1)
    sides = measure_sides(job)["used"]
    for cohort, (users, share) in shares.items():
        side = sides[f"cohort={cohort}"]
        found[np.array(side.items) - 1] = users * share
        (rest,) = set(side.whole) - set(side.items)
        found[rest - 1] = users * (1 - share)
    return found


@pytest.fixture
def job(dpstream: Commands, cluster: MemoryCluster, tmp_path: Path) -> DeployedJob:
    """Deploy a job with three published epochs."""
    path = tmp_path / "search.yaml"
    path.write_text(JOB_FILE)
    result = dpstream("deploy", path)
    assert result.code == 0, result.errors
    job = find_deployed(cast(Cluster, cluster), "search")
    for epoch, shares in (
        (1, {"2026-01": (900.0, 1.0)}),
        (2, {"2026-01": (1_000.0, 0.4), "2026-02": (150.0, 1.0)}),
        (3, {"2026-01": (1_000.0, 0.3), "2026-02": (150.0, 0.6), "2026-03": (5.0, 1.0)}),
    ):
        estimate = ItemEstimates(
            values(job, shares), DEVIATION, NORMAL_95 * DEVIATION, 2_000, 2_000
        )
        published = EstimateRecord(
            job.deployment, epoch, WindowStatus.RELEASED, epoch, 2_000, 2_000, estimate, {}
        )
        cluster.append(job.topic(Role.ESTIMATES), published.to_bytes())
    return job


def test_triangle_has_a_row_for_each_cohort_and_marks_what_is_uncertain(
    dpstream: Commands, job: DeployedJob
) -> None:
    lines = dpstream("estimates", "search", "--cohorts", "cohort").output.splitlines()
    assert [line.split() for line in lines[:5]] == [
        ["cohort", "users", "0", "1", "2"],
        ["2026-01", "1,000", "100.0", "40.0", "30.0"],
        ["2026-02", "150", "(100.0)", "(60.0)"],
        ["2026-03", "5", "-"],
        ["2026-04", "-"],
    ]
    assert lines[6].startswith("used: % of the cohort, by months since its first month; (12.3):")
    assert lines[7] == "-: the denominator is not distinguishable from 0"


def test_files_have_a_row_for_each_share(
    dpstream: Commands, job: DeployedJob, tmp_path: Path
) -> None:
    asked = ("estimates", "search", "--cohorts", "cohort")
    rows = [*csv.DictReader(io.StringIO(dpstream(*asked, "--csv", "-").output))]
    assert [(row["cohort"], row["since"], row["epoch"]) for row in rows] == [
        *(("2026-01", "0", "1"), ("2026-01", "1", "2"), ("2026-02", "0", "2")),
        *(("2026-01", "2", "3"), ("2026-02", "1", "3"), ("2026-03", "0", "3")),
    ]
    assert rows == [*csv.DictReader(io.StringIO(dpstream(*asked, "--format", "csv").output))]
    second = json.loads(dpstream(*asked, "--json").output.splitlines()[1])
    assert second["estimate"] == pytest.approx(0.4)
    assert (second["wide"], second["refused"], second["statistic"]) == (False, None, "share")
    # The size of a cohort is noisy, too: Fieller's interval.
    half = (second["ci95_high"] - second["ci95_low"]) / 2
    alone = NORMAL_95 * DEVIATION / 1_000
    assert half == pytest.approx(alone * (0.6**2 + 0.4**2) ** 0.5, rel=0.01)
    path = tmp_path / "cohorts.parquet"
    assert dpstream(*asked, "--parquet", path).code == 0
    table = parquet.read_table(path)
    assert table.column("refused").to_pylist()[5] == "the denominator is not distinguishable from 0"
    assert table.num_rows == len(rows)


def test_jobs_without_cohorts_are_rejected(dpstream: Commands, job: DeployedJob) -> None:
    with pytest.raises(CohortError, match="has no measure by plan"):
        Cohorts.of(job, "plan")
    with pytest.raises(CohortError, match="has no lost by cohort whose values are dates"):
        Cohorts.of(job, "cohort", "lost")
    for options, message in (
        (["--cohorts", "cohort", "--share"], "--cohorts shows one measure at all epochs"),
        (["--measure", "lost"], "--measure: got 'lost'; expected one of: used"),
    ):
        wrong = dpstream("estimates", "search", *options)
        assert (wrong.code > 0, message in wrong.errors) == (True, True)


def test_ratios_and_differences_of_private_cohorts_use_their_estimated_sizes(
    dpstream: Commands, job: DeployedJob
) -> None:
    asked = "cohort=2026-01,cohort=2026-02"
    output = dpstream("estimates", "search", "--difference", asked).output
    last = output.splitlines()[-1]
    assert last.startswith("30.0 points more of cohort=2026-02 than of cohort=2026-01 (60.0 and")


def test_share_is_marked_if_its_interval_is_wider_than_10_points_on_either_side() -> None:
    for half, wide in ((0.09, False), (0.11, True)):
        number = DerivedNumber(0.5, 0.5 - half, 0.5 + half)
        assert CohortShare("2026-01", 0, 1, 100.0, number).wide == wide
    assert not CohortShare("2026-01", 0, 1, 5.0, DerivedNumber(refused="few")).wide
