"""People are charged for every deployment, and never beyond their budget."""

import pytest

from pipeline.budgets import BudgetError, Charge, check_budget, is_charge
from pipeline.deployed_job import DeployedJob, deploy_job
from pipeline.jobs import make_job
from topics.frames import CodecError


def deployed(name: str = "job", epsilon: float = 4.0, **keys: object) -> DeployedJob:
    job = make_job(
        {
            "name": name,
            "protocol": "future_rand",
            "parameters": {"epsilon": epsilon, "changes": 2},
            "epochs": {"count": 8},
            **keys,
        }
    )
    return deploy_job(job, deployed_at=5)


def test_a_stream_is_charged_once() -> None:
    charge = Charge.of(deployed(population="students"))
    assert (charge.population, charge.job, charge.at) == ("students", "job", 5)
    assert charge.epsilon == 4.0
    assert charge.delta == 0.0


def test_a_job_without_a_population_has_its_own() -> None:
    assert Charge.of(deployed(name="weekly")).population == "weekly"


def test_charges_add_up_to_the_budget_and_no_further() -> None:
    """A deployment that was replaced has still seen these people."""
    job = deployed(population="students", budget={"epsilon": 8})
    charges: list[Charge] = []
    for _ in range(2):
        charges.append(check_budget(job, charges))
    with pytest.raises(BudgetError, match="2 earlier deployments took 8 and this one would take 4"):
        check_budget(job, charges)
    others = [Charge.of(deployed(population="teachers"))] * 5
    check_budget(job, others)
    check_budget(deployed(population="students"), charges)


def test_records() -> None:
    charge = Charge.of(deployed())
    assert Charge.from_bytes(charge.to_bytes()) == charge
    assert is_charge(charge.key)
    assert not is_charge(b"job")
    for data in (b"", b"[]", b"{}", b'{"population": "a"}'):
        with pytest.raises(CodecError):
            Charge.from_bytes(data)
