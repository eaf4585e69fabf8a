"""What a run leaves behind: the table, the plot, the comparison with the truth."""

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.operations.up.comparison import COMPARED, compared, write_comparison
from dpstream.pipeline.operations.up.curves import write_rows
from dpstream.pipeline.operations.up.outcome import (
    CSV_COLUMNS,
    NOT_PRIVATE,
    Outcome,
    next_steps,
    summary,
    write_csv,
)
from dpstream.pipeline.operations.up.plot import draw_plot
from dpstream.pipeline.operations.up.progress import Progress, Row
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.plots import PlotError
from tests.support.small_run import EPOCHS, USERS, SmallRun, job_text, run_small_job


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


def test_the_prediction_is_what_plan_says(outcome: Outcome) -> None:
    assert outcome.predicted_rmse == plan(outcome.job, USERS).rmse


def test_intervals_that_claim_nothing_are_not_counted(outcome: Outcome) -> None:
    first = outcome.rows[0]
    low = first.estimate.low
    assert low is not None
    outside = replace(first, truths=np.array([int(low) - 10]))
    flagged = replace(
        outside,
        record=replace(outside.record, estimate=replace(outside.estimate, flags=("gap",))),
    )
    rows = (outside, flagged, without_estimate(outside))
    assert replace(outcome, rows=rows).covered == (0, 1)


def test_the_table_has_a_row_for_every_epoch(outcome: Outcome, tmp_path: Path) -> None:
    rows = (without_estimate(outcome.rows[0]), *outcome.rows[1:])
    write_csv(outcome.job, rows, tmp_path / "estimates.csv")
    with (tmp_path / "estimates.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert tuple(read[0]) == CSV_COLUMNS
    assert [int(row["epoch"]) for row in read] == list(range(1, EPOCHS + 1))
    assert read[0]["estimate"] == read[0]["low"] == ""
    assert float(read[5]["estimate"]) == pytest.approx(rows[5].estimate.value, abs=1e-3)
    assert int(read[5][f"truth ({NOT_PRIVATE})"]) == rows[5].truth


def test_the_summary_compares_and_says_that_the_truth_is_not_private(outcome: Outcome) -> None:
    said = dict(summary(outcome))
    assert f"{outcome.rmse:,.0f} users" in said["RMSE"]
    assert f"{outcome.predicted_rmse:,.0f} users" in said["predicted RMSE"]
    assert re.search(r" users \(\d+\.\d %\), by dpstream plan", said["predicted RMSE"])
    # People are called what readers are told.
    job = deploy_job(parse_job(job_text() + "unit: homes\n"), deployed_at=0)
    homes = dict(summary(replace(outcome, job=job)))
    assert f"{outcome.rmse:,.0f} homes" in homes["RMSE"]
    assert "epsilon 2" in said["guarantee"]
    assert NOT_PRIVATE in said["truth"]
    assert "nothing" in dict(summary(replace(outcome, rows=())))["RMSE"]


def test_json_has_the_names_of_simulate(outcome: Outcome) -> None:
    body = json.loads(json.dumps(outcome.to_json(), allow_nan=False))
    assert body["rmse"] == outcome.rmse
    assert body["guarantee"]["epsilon"] <= 2
    assert {"estimate", "standard_deviation", "low", "high", "truth", "reports", "population"} <= (
        body["epochs"][0].keys()
    )
    assert body["epochs"][-1]["truth"] == USERS


def test_the_next_steps_are_commands() -> None:
    example = dict(next_steps(Path("/a b/demo.yaml"), "venv/dpstream", example=True))
    commands = [command for steps in example.values() for command in steps]
    assert "cp '/a b/demo.yaml' job.yaml" in commands
    assert "venv/dpstream up job.yaml --input FILE" in commands
    assert all(command.startswith(("cp ", "export ", "venv/dpstream ")) for command in commands)
    (own,) = dict(next_steps(Path("mine.yaml"), "dpstream", example=False)).values()
    assert "dpstream run aggregate mine.yaml" in own


def test_the_plot_is_a_picture(outcome: Outcome, tmp_path: Path) -> None:
    write_rows(outcome.job, outcome.rows, tmp_path / "estimates.png")
    data = (tmp_path / "estimates.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000


def test_runs_stand_side_by_side_in_a_table_and_a_picture(outcome: Outcome, tmp_path: Path) -> None:
    other = replace(outcome, reports=3 * USERS, rows=outcome.rows[:4])
    first, second = (dict(zip(COMPARED, row, strict=True)) for row in compared([outcome, other]))
    assert first["RMSE"] == f"{outcome.rmse:,.0f}"
    assert first["predicted"] == f"{outcome.predicted_rmse:,.0f}"
    assert (first["smoothed"], first["to be trusted"]) == ("-", "nobody")
    assert second["messages"] == "3"
    write_comparison([outcome, other], tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_an_epoch_without_estimate_interrupts_line_and_band(outcome: Outcome) -> None:
    rows = (*outcome.rows[:5], without_estimate(outcome.rows[5]), *outcome.rows[6:])
    axes = draw_plot(outcome.job, rows).axes[0]
    estimate, truth = axes.lines
    assert np.flatnonzero(np.isnan(np.asarray(estimate.get_ydata(), float))).tolist() == [5]
    assert not np.isnan(np.asarray(truth.get_ydata(), float)).any()
    # One polygon on either side of the gap.
    assert len(axes.collections[0].get_paths()) == 2
    assert NOT_PRIVATE in str(truth.get_label())
    assert "epsilon 2" in axes.get_title("left")


def test_epochs_with_missing_reports_are_marked(tmp_path: Path) -> None:
    outcome = outcome_of(run_small_job(tmp_path, silent=frozenset({1, 2, 3})))
    flagged = [row.epoch for row in outcome.rows if "gap" in row.notes]
    assert flagged
    marks = draw_plot(outcome.job, outcome.rows).axes[0].lines[-1]
    assert np.asarray(marks.get_xdata()).tolist() == flagged


def test_epochs_that_have_times_are_drawn_at_them(tmp_path: Path) -> None:
    run = run_small_job(tmp_path, more=", start: 2024-01-01, length: P1W")
    axes = draw_plot(run.job, outcome_of(run).rows).axes[0]
    assert axes.get_xlabel() == "week (UTC)"
    second = np.asarray(axes.lines[0].get_xdata(orig=True))[1]
    assert second == np.datetime64("2024-01-08")


def test_without_matplotlib_it_says_how_to_install_it(
    outcome: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotError, match=r"pip install 'dpstream\[plot\]'"):
        write_rows(outcome.job, outcome.rows, tmp_path / "estimates.png")
    assert not list(tmp_path.iterdir())
