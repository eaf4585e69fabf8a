"""Shuffled value_stream on real students: one message per week, released as noisy sums."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.pipeline.demo import demo_change_log
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.simulation.simulated_job import column_errors, coverage
from dpstream.pipeline.simulation.trials import run_trials
from dpstream.randomizers.shuffled_counts.shuffled_value_stream import ShuffledValueStreamLaw
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

EPOCHS, SEEDS, MOST = 170, 24, 29.5


def test_errors_on_student_data_match_predictions() -> None:
    students = load_change_log(demo_change_log(), last_epoch=EPOCHS)
    users = len(students.users)
    values = {
        "name": "students",
        "protocol": "shuffled_counts",
        "parameters": {"epsilon": 1, "delta": 1e-6, "max_changes": 4, "dummies": "shuffle"},
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": users},
    }
    job = deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))
    law = job.law
    assert isinstance(law, ShuffledValueStreamLaw)
    trials = run_trials(job, students, SEEDS, seed=1)
    errors = [column_errors([trial])["online"] for trial in trials]
    sent = {
        (record.summary.reports, record.contributors)
        for trial in trials
        for record in trial.records
        if record.headline is not None
    }
    planning = PROTOCOLS["shuffled_counts"].planning
    assert planning is not None
    expected = planning.forecast(law, job.parameters, EPOCHS)
    planned = math.sqrt(np.square(expected.standard_errors(users)).mean())
    covered = coverage(trials)
    assert covered is not None
    print_table(
        f"{users:,} students, epsilon 1, delta 1e-6, 4 changes, {SEEDS} seeds",
        ["mean RMSE", "standard error", "planned", "coverage", "messages of a student"],
        [
            [
                f"{np.mean(errors):.2f}",
                f"{np.std(errors, ddof=1) / math.sqrt(SEEDS):.2f}",
                f"{planned:.2f}",
                f"{covered:.3f}",
                f"{expected.reports_per_user.sum():.0f}",
            ]
        ],
    )
    assert sent == {(users, users)}
    assert expected.reports_per_user.sum() == EPOCHS
    assert np.mean(errors) <= MOST
    assert np.mean(errors) == pytest.approx(planned, rel=0.05)
    assert 0.93 <= covered <= 0.97
