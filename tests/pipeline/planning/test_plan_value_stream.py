"""How many changes value_stream should follow: what is missed, as real devices miss it."""

from __future__ import annotations

import numpy as np
import pytest

from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.planning.changes import weigh_changes

EPOCHS, DEVICES = 12, 3_000


def test_the_best_number_of_changes_weighs_noise_against_what_is_missed() -> None:
    job = make_job(
        {
            "name": "weeks",
            "protocol": "value_stream",
            "parameters": {"epsilon": 1, "changes": 7},
            "epochs": {"count": 64},
        }
    )
    shares = np.array([0.4, 0.2, 0.3, 0.1])
    few, many = weigh_changes(job, 1_000, shares), weigh_changes(job, 1_000_000, shares)
    # The more users there are, the more a bias is worth.
    assert [next(each.changes for each in found if each.best) for found in (few, many)] == [1, 3]
    biases = {each.changes: each.bias for each in many}
    assert biases[1] > biases[2] > 0
    assert biases[3] == biases[7] == 0.0
    noises = [each.noise for each in many]
    assert noises == sorted(noises)
    for each in (*few, *many):
        assert each.rmse == pytest.approx(np.hypot(each.noise, each.bias))
