"""Test the warnings of a plan: each is present if and only if it applies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.planning.job_plan import plan
from tests.support.new_jobs import new_job

ITEMS = ["a", "b", "c"]
COUNTED = {"delta": 1e-6, "domain": ITEMS}


def job_of(
    protocol: str = "value_stream",
    parameters: dict[str, Any] | None = None,
    minimum: int = 5_000,
    **more: Any,
) -> Job:
    parameters = {"max_changes": 2} if parameters is None else parameters
    return new_job(
        "reviewed",
        protocol,
        {"epsilon": 1, **parameters},
        epochs={"count": 8, **more.pop("epochs", {})},
        shuffle={"minimum": minimum, **more.pop("shuffle", {})},
        **more,
    )


def warnings_of(job: Job, users: int = 10_000, **more: Any) -> str:
    return "\n".join(plan(job, users, **more).warnings)


@pytest.mark.parametrize("protocol", ["value_stream", "count_min"])
def test_plan_of_a_well_configured_job_has_no_warnings(protocol: str) -> None:
    parameters = COUNTED if protocol == "count_min" else None
    assert warnings_of(job_of(protocol, parameters)) == ""


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (12, "may be right 999,994 times in 1,000,000 instead of 50 times in 100"),
        (40, "may be right always instead of 50 times in 100"),
    ],
)
def test_warning_of_a_large_loss_states_the_success_rate_of_attacks(
    epsilon: float, words: str
) -> None:
    said = warnings_of(job_of("future_rand", {"epsilon": epsilon, "max_changes": 2}))
    assert said.endswith(words) or f"{words}\n" in said


@pytest.mark.parametrize(
    ("users", "minimum", "words"),
    [
        (4_999, 5_000, "4,999 users are fewer than shuffle.minimum, 5,000"),
        (
            10_000,
            1_000,
            ("shuffle.minimum, 1,000, is small compared with 10,000 users: the guarantee assumes"),
        ),
        (10_000, 1, "shuffle.minimum is 1"),
    ],
)
def test_plan_warns_of_an_unsuitable_window_minimum(users: int, minimum: int, words: str) -> None:
    parameters = {**COUNTED, "delta": 0.01} if minimum == 1 else COUNTED
    parameters = {**parameters, "epsilon": 4} if minimum == 1 else parameters
    assert words in warnings_of(job_of("count_min", parameters, minimum), users)
    assert "is small" not in warnings_of(job_of("count_min", COUNTED, 1_001), 10_000)
    # If each device adds its own noise, a small minimum costs no accuracy.
    assert "is small" not in warnings_of(job_of(minimum=100))


def test_plan_warns_of_few_answers_per_epoch_if_devices_draw_when_to_answer() -> None:
    """On average 1,250 of 10,000 devices answer at an epoch; minus four deviations, 1,108."""

    def said(minimum: int, length: str = "7d", **more: Any) -> str:
        epochs = {"start": "2026-01-01", "length": length}
        return warnings_of(
            job_of("sampled_response", {"reports": 1}, minimum, epochs=epochs, **more)
        )

    assert said(1_108, devices={}) == ""
    varying = said(1_109, devices={})
    assert (
        "about 1,250 answer at an epoch, sometimes as few as 1,108, below shuffle.minimum"
        in varying
    )
    # Producers deal the epochs of answers evenly.
    assert said(1_250) == ""
    assert "1,250 are asked at an epoch, fewer than shuffle.minimum" in said(1_251, devices={})
    hasty = said(100, "PT1H", devices={})
    assert "Set devices.late and shuffle.grace to at least 2 epochs" in hasty
    assert said(100, "PT1H", devices={"late": "2h"}, shuffle={"grace": "3h"}) == ""
    assert said(100, "PT1H") == ""


def test_plan_warns_of_a_large_delta() -> None:
    requested = {**COUNTED, "delta": 1e-4}
    assert "delta 0.0001 is not below 1 in 10,000 users" in warnings_of(
        job_of("count_min", requested)
    )
    assert "is not below" not in warnings_of(job_of("count_min", requested), 9_999)
    central = job_of(
        parameters={"max_changes": 2}, central={"epsilon": 0.5, "delta": 1e-3}, minimum=5_000
    )
    assert "delta 0.001" in warnings_of(central)


def test_plan_warns_of_a_recurring_job_without_a_budget() -> None:
    renewed: dict[str, Any] = {"epochs": {"renew": True}}
    assert "is a recurring job without a budget: every horizon charges" in warnings_of(
        job_of(**renewed)
    )
    shared = warnings_of(job_of(population="people", **renewed))
    assert shared.count("is a recurring job without a budget") == 1
    assert "so population people is charged without limit" in shared
    assert "budget" not in warnings_of(job_of(budget={"epsilon": 3}, **renewed))


def test_plan_warns_that_max_changes_is_too_small() -> None:
    often = np.array([0.1, 0.1, 0.1, 0.1, 0.3, 0.3])
    few = job_of("future_rand", {"max_changes": 1, "epsilon": 8})
    said = warnings_of(few, 10**6, changes=often)
    assert "80% of the users change more often than parameters.max_changes, 1, covers" in said
    seldom = np.array([0.9, 0.09, 0.01])
    assert warnings_of(few, 10**6, changes=seldom) == ""
