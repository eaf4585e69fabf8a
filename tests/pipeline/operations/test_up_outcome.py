"""Test the output of a run: lines, a table, plots, the comparison with the ground truth."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from dpstream.aggregators.estimate import OUTSIDE, Estimate
from dpstream.pipeline.cli.up import _write
from dpstream.pipeline.demo.compared_runs import compared, write_comparison
from dpstream.pipeline.devices.ground_truths import CountedGroundTruths
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.operations.up.outcome import Outcome, Row, summary
from dpstream.pipeline.operations.up.screen import Screen, ScreenState, line_of
from dpstream.pipeline.results.expected_errors import predicted_rmse
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.guarantee import RollingGuarantee
from dpstream.randomizers.labeled_examples import packed_examples
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.small_run import EPOCHS, USERS, run_small_job


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    run = run_small_job(tmp_path_factory.mktemp("run"))
    ground_truths = CountedGroundTruths(run.ground_truth)
    rows = tuple(
        Row.of(run.job, EstimateRecord.from_bytes(value), ground_truths)
        for role, value in run.records
        if role is Role.ESTIMATES
    )
    return Outcome(run.job, rows, USERS, seconds=2.5, ground_truths=ground_truths)


def without_estimate(row: Row) -> Row:
    return replace(row, record=replace(row.record, estimate=None))


def view_of(job: DeployedJob, rows: tuple[Row, ...], activity: str = "") -> ScreenState:
    return ScreenState(job, activity, rows, EPOCHS)


def test_every_epoch_is_printed_with_its_ground_truth(outcome: Outcome) -> None:
    rows = outcome.rows
    assert [row.epoch for row in rows] == list(range(1, EPOCHS + 1))
    assert rows[-1].headline.ground_truth == USERS
    assert all(row.estimate.value is not None and not row.notes for row in rows)
    # The numbers shown are clipped: next to them, the flag would look like a ground truth
    # outside the interval.
    assert any(OUTSIDE in row.estimate.flags for row in rows)


def test_rmse_compares_estimates_with_the_ground_truth(outcome: Outcome) -> None:
    moved = [
        replace(
            row, ground_truths=np.round(row.intervals[0] - 10 * (-1) ** row.epoch).astype(np.int64)
        )
        for row in outcome.rows
    ]
    missing = without_estimate(moved[0])
    result = replace(outcome, rows=(missing, *moved[1:]))
    assert result.rmse == pytest.approx(10, abs=0.5)
    assert replace(outcome, rows=(missing,)).rmse is None


def test_infinite_intervals_are_excluded_from_coverage(outcome: Outcome) -> None:
    first = outcome.rows[0]
    low = first.estimate.ci95_low
    assert low is not None
    outside = replace(first, ground_truths=np.array([int(low) - 10]))
    flagged = replace(
        outside, record=replace(outside.record, estimate=replace(outside.estimate, flags=("gap",)))
    )
    rows = (outside, flagged, without_estimate(outside))
    assert replace(outcome, rows=rows).covered == (0, 1)


def test_screen_prints_each_activity_and_epoch_once(outcome: Outcome) -> None:
    console = Console(file=io.StringIO(), width=60, record=True)
    with Screen(console) as screen:
        for last, activity in ((0, "fetching: 1 of 2"), (0, "fetching: 2 of 2"), (5, ""), (12, "")):
            screen.show(view_of(outcome.job, outcome.rows[:last], activity))
    first, *epochs = console.export_text().splitlines()
    assert first == "fetching: 1 of 2"
    assert epochs == [line_of(row, outcome.job) for row in outcome.rows]
    assert epochs[-1].startswith("epoch 12  estimate ")
    assert f"ground truth (demo: not private) {USERS}  users {USERS}" in epochs[-1]


def test_terminal_shows_progress(outcome: Outcome) -> None:
    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)
    with Screen(console) as screen:
        screen.show(view_of(outcome.job, outcome.rows[:3]))
    assert outcome.job.position_of(3, EPOCHS) in console.export_text()


def test_comparison_lists_every_run(outcome: Outcome, tmp_path: Path) -> None:
    (row, _) = compared([outcome, outcome])
    assert row[0] == "future_rand"
    assert row[2] == f"{outcome.rmse:,.0f}"
    write_comparison([outcome, outcome], tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def test_results_include_ground_truth_and_plot(outcome: Outcome, tmp_path: Path) -> None:
    files = _write(outcome, tmp_path, alone=True)
    with files["estimates"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ground_truth_not_private"]) for row in rows] == [
        float(row.ground_truths[0]) for row in outcome.rows if row.ground_truths is not None
    ]
    assert files["plot"].read_bytes().startswith(b"\x89PNG")


def test_learning_job_has_no_ground_truth(tmp_path: Path) -> None:
    tested = packed_examples(np.array([[1, 900, -300], [2, -900, 500]]))
    requested = {"epsilon": 3, "delta": 0.01, "features": 2, "classes": 2, "test_set": tested}
    values = {
        "name": "learning",
        "protocol": "ldp_sgd",
        "parameters": requested,
        "epochs": {"count": 2},
    }
    job = deploy_job(make_job({**values, "shuffle": {"minimum": 5}}), deployed_at=0)
    ground_truths = CountedGroundTruths(np.zeros((2, 0), np.int64))
    rows = []
    for epoch, estimate in ((1, None), (2, Estimate.around(96.25, 1.0, 1.96, 900, USERS))):
        window_status = WindowStatus.RELEASED if estimate else WindowStatus.SUPPRESSED
        record = EstimateRecord(
            job.deployment, epoch, window_status, epoch, 900, USERS, estimate, {}
        )
        rows.append(Row.of(job, record, ground_truths))
    outcome = Outcome(job, tuple(rows), USERS, seconds=2.5, ground_truths=ground_truths)
    files = _write(outcome, tmp_path, alone=True)
    with files["estimates"].open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["estimate"] for row in written] == ["", "96.25"]
    assert {row["ground_truth_not_private"] for row in written} == {""}
    assert outcome.to_json()["rmse"] is None
    text = dict(summary(outcome))["last estimate"]
    assert text.startswith("The accuracy on the test set is 96.2 % at epoch 2")
    assert "ground_truth" not in line_of(rows[1], job)


def test_prediction_uses_the_estimated_share(tmp_path: Path) -> None:
    requested = "protocol: sampled_response\nparameters: {epsilon: 4, reports: 1}"
    run = run_small_job(tmp_path, requested=f"{requested}\nshuffle: {{minimum: 5}}")
    ground_truths = CountedGroundTruths(run.ground_truth)
    values = [value for role, value in run.records if role is Role.ESTIMATES]
    rows = tuple(
        Row.of(run.job, EstimateRecord.from_bytes(value), ground_truths) for value in values
    )
    found = Outcome(run.job, rows, USERS, seconds=2.5, ground_truths=ground_truths)
    # Half of the users have the value on average, not a tenth.
    assert found.share == pytest.approx(0.54, abs=0.15)
    assert found.predicted_rmse == predicted_rmse(run.job, USERS, found.share)
    assert (found.predicted_rmse or 0.0) > 1.2 * (predicted_rmse(run.job, USERS) or 0.0)
    assert f"for the estimated share of {found.share:.0%}" in dict(summary(found))["predicted RMSE"]
    assert found.to_json()["predicted_share"] == found.share
    rolling = replace(found.job.guarantee, rolling=RollingGuarantee(6, 4.0))
    recurring = replace(found, job=found.job.model_copy(update={"guarantee": rolling}))
    stated = dict(summary(recurring))["guarantee"]
    assert "epsilon 4 for any 6 consecutive epochs, forever; trusted party: none" in stated
