"""Test a plain job from reports to estimates, with only the core packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.names import Role
from tests.support.small_run import EPOCHS, USERS, run_small_job

VALUE_STREAM = "protocol: value_stream\nparameters: {epsilon: 8, max_changes: 2}"


def test_plain_job_publishes_an_estimate_for_every_epoch(tmp_path: Path) -> None:
    run = run_small_job(tmp_path, requested=VALUE_STREAM)
    published = [
        EstimateRecord.from_bytes(value) for role, value in run.records if role is Role.ESTIMATES
    ]
    assert [record.epoch for record in published] == list(range(1, EPOCHS + 1))
    values = [record.summary.value for record in published]
    # Ten standard errors: that of an epoch is about a tenth of the users.
    assert np.abs(np.array(values, np.float64) - run.ground_truth).max() < USERS
