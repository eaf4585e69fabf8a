"""What a run leaves behind: the table, the plot, the comparison with the truth."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.operations.up.outcome import (
    NOT_PRIVATE,
    Outcome,
    summary,
    write_csv,
)
from dpstream.pipeline.operations.up.plot import write_rows
from dpstream.pipeline.operations.up.progress import Progress, Row
from dpstream.pipeline.operations.up.screen import View, render
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.labelled_examples import packed_examples
from dpstream.topics.manifests import Fate
from dpstream.topics.names import Role
from tests.support.small_run import USERS, SmallRun, run_small_job


def outcome_of(run: SmallRun) -> Outcome:
    progress = Progress(run.job, CountedTruths(run.truth))
    for role, value in run.records:
        progress.apply(role, value)
    return Outcome(run.job, progress.rows(), USERS, seconds=2.5, reports=progress.reports)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return outcome_of(run_small_job(tmp_path_factory.mktemp("run")))


def without_estimate(row: Row) -> Row:
    return replace(row, record=replace(row.record, estimate=None))


def test_the_error_is_that_of_the_estimates_against_the_truth(outcome: Outcome) -> None:
    moved = [
        replace(row, truths=np.round(row.intervals[0] - 10 * (-1) ** row.epoch).astype(np.int64))
        for row in outcome.rows
    ]
    missing = without_estimate(moved[0])
    result = replace(outcome, rows=(missing, *moved[1:]))
    assert result.rmse == pytest.approx(10, abs=0.5)
    assert replace(outcome, rows=(missing,)).rmse is None


def test_intervals_that_claim_nothing_are_not_counted(outcome: Outcome) -> None:
    first = outcome.rows[0]
    low = first.estimate.low
    assert low is not None
    outside = replace(first, truths=np.array([int(low) - 10]))
    flagged = replace(
        outside, record=replace(outside.record, estimate=replace(outside.estimate, flags=("gap",)))
    )
    rows = (outside, flagged, without_estimate(outside))
    assert replace(outcome, rows=rows).covered == (0, 1)


def test_a_job_that_learns_has_no_truth(tmp_path: Path) -> None:
    tested = packed_examples(np.array([[1, 900, -300], [2, -900, 500]]))
    asked = {"epsilon": 3, "delta": 0.01, "features": 2, "classes": 2, "test_set": tested}
    values = {
        "name": "learning",
        "protocol": "ldp_sgd",
        "parameters": asked,
        "epochs": {"count": 2},
    }
    job = deploy_job(make_job({**values, "shuffle": {"minimum": 5}}), deployed_at=0)
    progress = Progress(job, CountedTruths(np.zeros((2, 0), np.int64)))
    for epoch, estimate in ((1, None), (2, Estimate.around(96.25, 1.0, 1.96, 900, USERS))):
        fate = Fate.RELEASED if estimate else Fate.TOO_SMALL
        record = EstimateRecord(job.deployment, epoch, fate, epoch, 900, USERS, estimate, {})
        progress.apply(Role.ESTIMATES, record.to_bytes())
    outcome = Outcome(job, progress.rows(), USERS, seconds=2.5, reports=1_800)
    write_csv(job, outcome.rows, tmp_path / "estimates.csv")
    write_rows(job, outcome.rows, tmp_path / "estimates.png")
    with (tmp_path / "estimates.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["estimate"] for row in rows] == ["", "96.250"]
    assert {row[f"truth ({NOT_PRIVATE})"] for row in rows} == {""}
    assert outcome.to_json()["rmse"] is None
    said = dict(summary(outcome))["last estimate"]
    assert said.startswith("The accuracy on the test set is 96.2 % at epoch 2")
    console = Console(record=True, width=120, height=30, file=io.StringIO())
    console.print(render(View("learning", "", (), USERS, progress), 120, 30))
    assert "truth" not in console.export_text()
