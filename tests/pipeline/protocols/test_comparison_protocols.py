"""What FutureRand is compared with: the same jobs, plans, budgets and runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.aggregators.estimate import Estimate
from dpstream.pipeline.cli.output import guarantee_pairs
from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.rows import BadRows
from dpstream.pipeline.jobs.budgets import BudgetError, Charge, check_budget
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning.plan import plan
from dpstream.pipeline.simulation.simulate import simulate


def job(protocol: str, parameters: dict[str, Any], epochs: int = 256, **keys: object) -> Job:
    return make_job(
        {
            "name": "compared",
            "protocol": protocol,
            "parameters": parameters,
            "epochs": {"count": epochs},
            **keys,
        }
    )


def deployed(protocol: str, parameters: dict[str, Any], **keys: Any) -> DeployedJob:
    return deploy_job(job(protocol, parameters, **keys), deployed_at=0)


# Asked for epsilon 1, 4 changes, 256 epochs and 100,000 users: what is spent on a whole stream, and
# the root mean squared error to expect. FutureRand, as published: 165 sqrt(users) = 52,180.
@pytest.mark.parametrize(
    ("protocol", "parameters", "spent", "error"),
    [
        ("independent_response", {"changes": 4}, 1.0, 15_265),
        ("erlingsson", {"changes": 4}, 0.5, 31_003),
        ("erlingsson", {"changes": 4, "calibration": "full"}, 1.0, 16_431),
        ("bun", {"changes": 4}, 0.189092, 80_327),
        ("split_budget", {}, 1.0, 80_954),
        ("memoized_response", {}, 142.327, 1_262),
        ("memoized_response", {"calibration": "full"}, 150.680, 626),
    ],
)
def test_plans_state_the_loss_of_a_whole_stream_and_the_error(
    protocol: str, parameters: dict[str, Any], spent: float, error: int
) -> None:
    expected = plan(job(protocol, {"epsilon": 1, **parameters}), users=100_000)
    guarantee = expected.guarantee
    assert (guarantee.stream_epsilon or guarantee.epsilon) == pytest.approx(spent, abs=1e-3)
    assert round(expected.rmse) == error


def test_a_value_is_claimed_and_the_stream_is_shown_and_charged() -> None:
    memoized = deployed("memoized_response", {"epsilon": 1}, epochs=10)
    charged = Charge.of(memoized).epsilon
    assert round(charged, 2) == 4.65
    shown = dict(guarantee_pairs(memoized.guarantee()))["guarantee"]
    assert shown == ("epsilon 1 for a user's single value (claimed), 4.65303 for the whole stream")
    assert memoized.guarantee().to_json()["stream_epsilon"] == charged
    tight = deployed("memoized_response", {"epsilon": 1}, epochs=10, budget={"epsilon": 4.6})
    with pytest.raises(BudgetError, match=r"this one would take 4\.65303"):
        check_budget(tight, [])


@pytest.mark.parametrize(
    ("protocol", "parameters"),
    [
        ("independent_response", {"changes": 2}),
        ("erlingsson", {"changes": 2}),
        ("bun", {"changes": 2}),
        ("split_budget", {}),
        ("memoized_response", {}),
    ],
)
def test_a_whole_job_runs(protocol: str, parameters: dict[str, Any]) -> None:
    """2,000 users, a quarter of whom have the value 1 from epoch 2 to epoch 4."""
    users, changing = 2000, np.arange(500, dtype=np.int32)
    log = ChangeLog(
        users=tuple(f"user{number:04}" for number in range(users)),
        epochs=np.repeat(np.array([2, 5], np.int32), 500),
        user_indices=np.tile(changing, 2),
        values=np.repeat(np.array([1, 0], np.int8), 500),
        last_epoch=6,
        initial=0,
        bad_rows=BadRows("made"),
    )
    ran = simulate(deployed(protocol, {"epsilon": 8, **parameters}, epochs=6), log, seed=1)
    assert ran.truth.tolist() == [0, 0, 500, 500, 500, 0, 0]
    assert ran.frozen == 0
    assert len(ran.records) == 6
    for record in ran.records:
        estimate = record.estimate
        assert isinstance(estimate, Estimate)
        assert estimate.value is not None
        assert estimate.standard_deviation is not None
        off = abs(estimate.value - ran.truth[record.epoch])
        assert off < 7.5 * estimate.standard_deviation
