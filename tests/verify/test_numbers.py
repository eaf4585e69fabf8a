"""Numbers over time: the experiment `numbers` errs as planned."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.evaluation.columns import ONLINE
from experiments.evaluation.experiment import load_experiment
from experiments.evaluation.trial import run_trial
from experiments.shipped import FOLDER
from tests.verify.tables import print_table

pytestmark = pytest.mark.verify

SEEDS = 3


def test_numbers_err_as_planned() -> None:
    found, rows = {}, []
    for case in load_experiment(FOLDER / "numbers.yaml").cases:
        trials = [run_trial(case.job.to_bytes(), case.source, seed) for seed in range(1, SEEDS + 1)]
        online = [trial.accuracies[ONLINE] for trial in trials]
        rmse = float(np.sqrt(np.mean([each.rmse**2 for each in online])))
        planned = online[0].predicted_rmse
        covered = float(np.mean([each.coverage for each in online if each.coverage is not None]))
        assert planned is not None
        found[case.job.protocol] = rmse, planned, covered
        rows.append([case.job.protocol, f"{rmse:,.0f}", f"{planned:,.0f}", f"{covered:.1%}"])
    print_table(
        f"50,000 users, 16 buckets, 64 epochs, up to 4 changes, epsilon 1, {SEEDS} seeds",
        ["protocol", "RMSE of a bucket", "planned", "coverage"],
        rows,
    )
    rmse, planned, covered = found["range_values"]
    assert rmse == pytest.approx(planned, rel=0.05)
    assert 0.94 <= covered <= 0.96
