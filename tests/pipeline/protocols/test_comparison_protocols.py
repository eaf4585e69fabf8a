"""What plans say of protocols that are compared with ours."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpstream.pipeline.cli.output import guarantee_pairs
from dpstream.pipeline.jobs.budgets import BudgetError, Charge, check_budget
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning.plan import Plan, plan


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
    shown = dict(guarantee_pairs(memoized.guarantee))["guarantee"]
    assert shown == ("epsilon 1 for a user's single value (claimed), 4.65303 for the whole stream")
    assert memoized.guarantee.to_json()["stream_epsilon"] == charged
    tight = deployed("memoized_response", {"epsilon": 1}, epochs=10, budget={"epsilon": 4.6})
    with pytest.raises(BudgetError, match=r"this one would take 4\.65303"):
        check_budget(tight, [])


def planned(users: int = 100_000, epochs: int = 1, **parameters: Any) -> Plan:
    values = {
        "name": "drinks",
        "protocol": "projective_geometry",
        "parameters": {"epsilon": 1, **parameters},
        "epochs": {"count": epochs},
        "shuffle": {"minimum": users},
    }
    return plan(make_job(values), users)


@pytest.mark.parametrize("domain", [{"bits": 10}, {"low": 0, "high": 1, "buckets": 1024}])
def test_the_error_planned_is_that_of_the_best_local_protocol(domain: dict[str, Any]) -> None:
    made = planned(domain=domain)
    least = math.sqrt(100_000 * 4 * math.e) / math.expm1(1)
    assert least < made.rmse < 1.025 * least
    assert made.cells is not None
    assert made.cells.startswith("1,093 points of a projective space of 7 coordinates")
    assert made.guarantee.delta == 0
    assert made.bytes_per_user == 2


def test_sets_are_planned_to_be_worse_in_proportion_to_their_places() -> None:
    domain = [f"item {number}" for number in range(1000)]
    one, three = planned(domain=domain), planned(domain=domain, items=3)
    assert three.rmse == pytest.approx(3 * one.rmse)
    assert any("one of 3 places" in caveat for caveat in three.caveats)
    assert three.guarantee.basis == "bound"


def test_every_epoch_is_charged() -> None:
    guarantee = planned(epochs=4, domain=["tea", "milk"]).guarantee
    assert (guarantee.epsilon, guarantee.stream_epsilon, guarantee.unit) == (1.0, 4.0, "epoch")


def test_an_open_domain_is_planned_by_what_can_be_found() -> None:
    made = planned(domain={"bits": 24}, epsilon=4, users=1_000_000)
    assert made.cells is not None
    assert made.cells.startswith("prefixes of 19 bits in 524,288 cells, 24 bits in 524,288 hashed")
    (found,) = (caveat for caveat in made.caveats if "have to hold an item to be found" in caveat)
    assert found.startswith("of 1,000,000 users about ")
    none = planned(domain={"bits": 24}, users=100)
    assert any("no item is found" in caveat for caveat in none.caveats)
