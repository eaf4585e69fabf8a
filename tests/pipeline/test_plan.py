"""The plan: it predicts the reference's numbers, and what it says a device sends is sent."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from aggregators.future_rand import predicted_standard_deviation
from pipeline.forecasts import Forecast
from pipeline.job_problems import JobError
from pipeline.jobs import Job, make_job
from pipeline.plan import Plan, plan, users_needed
from pipeline.protocols import PROTOCOLS
from randomizers.future_rand import FutureRandLaw
from randomizers.randomness import seeded_generator


def job(epochs: int, changes: int, calibration: str = "optimal", epsilon: float = 1.0) -> Job:
    parameters = {"epsilon": epsilon, "changes": changes, "calibration": calibration}
    return make_job(
        {
            "name": "planned",
            "protocol": "future_rand",
            "parameters": parameters,
            "epochs": {"count": epochs},
        }
    )


def forecast_of(planned: Job) -> Forecast:
    forecast = planned.protocol_entry.forecast
    assert forecast is not None
    return forecast(planned.calibrate(), planned.last_epoch)


# RMSE / sqrt(users) at epsilon 1. The reference's column for the optimal law has as many signs at
# every order, which is the same for k = 1 only.
@pytest.mark.parametrize(
    ("epochs", "changes", "calibration", "expected"),
    [
        (64, 1, "published", 46.1),
        (64, 4, "published", 126),
        (64, 16, "published", 236),
        (256, 1, "published", 60.2),
        (256, 4, "published", 165),
        (256, 16, "published", 308),
        (1024, 1, "published", 74.4),
        (1024, 4, "published", 204),
        (1024, 16, "published", 380),
        (64, 1, "optimal", 9.9),
        (256, 1, "optimal", 13.0),
        (1024, 1, "optimal", 16.0),
    ],
)
def test_the_predicted_error_is_the_reference_one(
    epochs: int, changes: int, calibration: str, expected: float
) -> None:
    rmse = plan(job(epochs, changes, calibration), users=10**6).rmse / 1000
    assert rmse == pytest.approx(expected, rel=0.006)


def test_signs_that_an_order_cannot_use_are_not_paid_for() -> None:
    rmse = plan(job(256, 16), users=10**6).rmse / 1000
    assert rmse < 0.95 * 60.1


@pytest.mark.parametrize("calibration", ["optimal", "published"])
def test_every_epoch_has_the_error_that_the_estimator_predicts(calibration: str) -> None:
    planned = job(170, 4, calibration, epsilon=4)
    expected = plan(planned, users=28_785)
    law = planned.calibrate()
    assert isinstance(law, FutureRandLaw)
    assert [epoch.epoch for epoch in expected.epochs] == list(range(1, 171))
    assert [epoch.standard_deviation for epoch in expected.epochs] == pytest.approx(
        [predicted_standard_deviation(law, epoch, 28_785) for epoch in range(1, 171)]
    )
    squares = [epoch.standard_deviation**2 for epoch in expected.epochs]
    assert expected.rmse == pytest.approx(math.sqrt(sum(squares) / len(squares)))


def test_the_guarantee_is_that_of_the_law() -> None:
    assert plan(job(64, 4, epsilon=4)).guarantee.epsilon == pytest.approx(4)
    published = plan(job(64, 4, "published")).guarantee
    assert published.epsilon == pytest.approx(0.252435, abs=1e-6)
    assert (published.unit, published.delta) == ("stream", 0)


def test_the_constants_are_listed_order_by_order() -> None:
    rows = plan(job(170, 4)).constants
    assert [row["epochs"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert [row["changes"] for row in rows] == [4, 4, 4, 4, 4, 4, 4, 2, 1]
    assert rows[0]["c_gap"] == pytest.approx(0.209620, abs=1e-6)
    assert rows[-1]["c_gap"] == pytest.approx(0.462117, abs=1e-6)
    assert sum(row["probability"] for row in rows) == pytest.approx(1)
    assert all(row["epsilon"] <= 1 for row in rows)


def test_a_device_sends_what_was_announced() -> None:
    planned, devices = job(12, 2), 5000
    expected = plan(planned, users=devices)
    rng = seeded_generator(3)
    randomizer = planned.protocol_entry.randomizer(planned.calibrate())
    randomizer.enrol(devices, rng)
    values = np.zeros(devices, np.int8)
    sent = [len(randomizer.report(epoch, values, None, rng)) for epoch in range(1, 13)]
    for epoch, reports in zip(expected.epochs, sent, strict=True):
        # Who reports at an epoch is a matter of the order alone: a binomial number, within 7 sigma.
        assert abs(reports - epoch.reports) <= 7 * math.sqrt(devices) / 2
    assert sum(sent) == pytest.approx(expected.reports_per_user * devices, rel=0.1)
    assert expected.bytes_per_user == expected.reports_per_user


def test_the_users_needed_suffice_and_one_less_does_not() -> None:
    planned = job(170, 4, epsilon=4)
    expected = plan(planned)
    shares = []
    for needed in expected.users_needed:
        assert needed.users is not None
        assert plan(planned, needed.users).rmse <= needed.error * needed.users
        assert plan(planned, needed.users - 1).rmse > needed.error * (needed.users - 1)
        shares.append(needed.error)
    assert shares == [0.1, 0.05, 0.02, 0.01]


def test_an_error_out_of_reach_is_no_number() -> None:
    assert users_needed(forecast_of(job(170, 4)), 1e-9) is None


def test_freezing_is_named_as_left_out() -> None:
    (caveat,) = plan(job(8, 3)).caveats
    assert "more than 3 changes freezes" in caveat


def test_a_long_horizon_is_planned() -> None:
    assert len(plan(job(2**17, 4)).epochs) == 2**17


def test_a_plan_is_plain_json() -> None:
    expected: Plan = plan(job(4, 1), users=100)
    read = json.loads(json.dumps(expected.to_json(), allow_nan=False))
    assert (read["job"], read["protocol"], read["users"]) == ("planned", "future_rand", 100)
    assert read["guarantee"]["epsilon"] == expected.guarantee.epsilon
    assert [epoch["epoch"] for epoch in read["epochs"]] == [1, 2, 3, 4]
    assert read["users_needed"][0] == {"error": 0.1, "users": expected.users_needed[0].users}


def test_what_cannot_be_planned_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="0 users: give a number from 1 on"):
        plan(job(4, 1), users=0)
    mute = replace(PROTOCOLS["future_rand"], forecast=None)
    monkeypatch.setitem(PROTOCOLS, "future_rand", mute)
    with pytest.raises(JobError, match="protocol: future_rand has no forecast to plan with"):
        plan(job(4, 1))
