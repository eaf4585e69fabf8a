"""Errors of sampled responses on real students: epochs, means over windows, and their changes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.demo import demo_change_log
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.results.changes import changes
from dpstream.pipeline.results.roll_ups import WindowRecord, roll_ups
from dpstream.pipeline.simulation.simulated_job import Simulation
from dpstream.pipeline.simulation.trials import run_trials
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from tests.support.new_jobs import new_job
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

SEEDS = 12


@dataclass(frozen=True)
class Setting:
    """Job over 170 weeks of 28,785 students, with the reference RMSE by window."""

    epsilon: float
    reports: int
    rmse: dict[int, float]
    filtered: float
    smoothed: float


SETTINGS = [
    Setting(1, 1, {1: 2_298, 4: 1_158, 13: 642, 26: 451}, 1_295, 971),
    Setting(4, 3, {1: 620, 4: 303, 13: 162, 26: 117}, 507, 437),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: f"epsilon-{each.epsilon:g}")
def test_means_over_windows_match_the_reference(setting: Setting) -> None:
    parameters = {"epsilon": setting.epsilon, "reports": setting.reports}
    job = deploy_job(
        new_job("students", "sampled_response", parameters, count=170),
        deployed_at=0,
        deployment=bytes(16),
    )
    log = load_change_log(demo_change_log(), last_epoch=170)
    trials = run_trials(job, log, SEEDS, seed=1, smooth=True)
    rows = []
    for window, reference in setting.rmse.items():
        errors, covered = compared(trials, job, window, lag=None)
        rmse = math.sqrt(float(np.mean(errors**2)))
        changed, covered_changes = compared(trials, job, window, lag=1)
        rows.append(
            [
                *(f"{window}", f"{reference:,.0f}", f"{rmse:,.0f}", f"{covered.mean():.3f}"),
                f"{math.sqrt(float(np.mean(changed**2))):,.0f}",
                f"{covered_changes.mean():.3f}",
            ]
        )
        # Standard errors of an RMSE over this many nearly independent errors.
        assert abs(rmse / reference - 1) < 4 / math.sqrt(2 * len(errors)) + 0.01, window
        slack = 4 * math.sqrt(0.05 * 0.95 / len(errors))
        assert 0.94 - slack < covered.mean() < 0.965 + slack, window
        assert covered_changes.mean() > 0.94 - slack, window
    for name, reference in (("online_shrunk", setting.filtered), ("shrunk", setting.smoothed)):
        # As published, they are clipped to the number of students.
        found = [getattr(each.smoothed[0].estimates, name)[:, 0] for each in trials]
        rmse = math.sqrt(float(np.mean((np.array(found) - trials[0].ground_truth[1:]) ** 2)))
        rows.append([name, f"{reference:,.0f}", f"{rmse:,.0f}", "", "", ""])
        assert abs(rmse / reference - 1) < 0.05, name
    print_table(
        f"sampled_response, epsilon {setting.epsilon:g}, {setting.reports} answers, {SEEDS} seeds",
        ["weeks", "reference", "RMSE", "coverage", "change", "coverage"],
        rows,
    )


def compared(
    trials: list[Simulation], job: DeployedJob, window: int, lag: int | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return errors and covered intervals of means over windows, or of their changes."""
    errors, covered = [], []
    for trial in trials:
        records: Iterator[EstimateRecord] = iter(trial.records)
        if window > 1:
            records = roll_ups(job, records, window)
        if lag is not None:
            records = changes(job, records, lag, window)
        for record in records:
            first = record.first_epoch if isinstance(record, WindowRecord) else record.epoch
            truth = trial.ground_truth[first : record.epoch + 1].mean()
            if lag is not None:
                truth -= trial.ground_truth[first - window : record.epoch + 1 - window].mean()
            value, low, high = record.estimate.intervals[:, 0] if record.estimate else [0.0] * 3
            errors.append(value - truth)
            covered.append(low <= truth <= high)
    return np.array(errors), np.array(covered)
