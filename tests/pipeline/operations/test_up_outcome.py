"""What a run leaves behind: the table, the plot, the comparison with the truth."""

from dataclasses import replace

import numpy as np
import pytest

from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.operations.up.outcome import (
    Outcome,
)
from dpstream.pipeline.operations.up.progress import Progress, Row
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
