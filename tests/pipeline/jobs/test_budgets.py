"""People are charged for every deployment, and never beyond their budget."""

from __future__ import annotations

import json
from typing import cast

import pytest

from dpstream.pipeline.jobs.budgets import (
    BudgetError,
    Charge,
    check_budget,
    horizons_within_budget,
    is_charge,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.operations.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import charges, deploy
from dpstream.topics.frames import CodecError
from tests.support.memory_cluster import MemoryCluster


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


def test_a_charge_survives_its_bytes_and_other_bytes_are_refused() -> None:
    charge = Charge.of(deployed())
    assert Charge.from_bytes(charge.to_bytes()) == charge
    assert is_charge(charge.key)
    assert not is_charge(b"job")
    for data in (b"", b"[]", b"{}", b'{"population": "a"}'):
        with pytest.raises(CodecError):
            Charge.from_bytes(data)


def renewing(
    name: str = "job", epsilon: float = 4.0, budget: dict[str, float] | None = None
) -> DeployedJob:
    keys = {} if budget is None else {"budget": budget}
    epochs = {"count": 8, "renew": True}
    return deployed(name, epsilon, epochs=epochs, population="students", **keys)


def test_horizons_are_as_many_as_the_budget_has_room_for() -> None:
    """And all of them are charged when the job is deployed."""
    job = renewing(budget={"epsilon": 14})
    assert horizons_within_budget(job, []) == 3
    earlier = [Charge.of(deployed(population="students"))]
    assert horizons_within_budget(job, earlier) == 2
    fitted = job.model_copy(update={"horizons": 2})
    charge = check_budget(fitted, earlier)
    assert (charge.epsilon, charge.horizons) == (4.0, 2)
    assert fitted.last_epoch == 16
    with pytest.raises(BudgetError, match="2 earlier deployments took 12 and this one would take"):
        check_budget(job.model_copy(update={"horizons": 1}), [*earlier, charge])
    one_more = renewing(budget={"epsilon": 16}).model_copy(update={"horizons": 1})
    check_budget(one_more, [*earlier, charge])


def test_all_horizons_of_a_job_must_fit_its_budget() -> None:
    job = renewing(budget={"epsilon": 14})
    earlier = [Charge.of(deployed(population="students"))]
    check_budget(job.model_copy(update={"horizons": 2}), earlier)
    with pytest.raises(BudgetError, match="took 4 and this one would take 12"):
        check_budget(job.model_copy(update={"horizons": 3}), earlier)


def test_a_job_without_room_for_one_horizon_is_refused() -> None:
    job = renewing(budget={"epsilon": 3.9})
    assert horizons_within_budget(job, []) == 1
    with pytest.raises(BudgetError, match="0 earlier deployments took 0 and this one"):
        check_budget(job.model_copy(update={"horizons": 1}), [])


def test_budgets_are_counted_as_they_are_written() -> None:
    """Ten times 0.1 is 1, and three times 0.1 is 0.3."""
    for budget, horizons in ((0.3, 3), (1.0, 10), (0.99, 9), (1e300, 2**60 - 1)):
        job = renewing(epsilon=0.1, budget={"epsilon": budget})
        assert horizons_within_budget(job, []) == horizons
        check_budget(job.model_copy(update={"horizons": min(horizons, 10)}), [])


def test_horizons_without_end_leave_no_budget_to_be_kept() -> None:
    endless = renewing(name="endless")
    assert horizons_within_budget(endless, []) is None
    charge = check_budget(endless, [])
    assert charge.horizons is None
    assert Charge.from_bytes(charge.to_bytes()) == charge
    for job in (
        deployed(population="students", budget={"epsilon": 99}),
        renewing(budget={"epsilon": 99}),
    ):
        with pytest.raises(BudgetError, match="charged without end by job endless, which renews"):
            check_budget(job, [charge])
    check_budget(deployed(population="teachers", budget={"epsilon": 4}), [charge])
    check_budget(deployed(population="students"), [charge])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("population", None),
        ("population", ["a"]),
        ("job", ""),
        ("deployment", 7),
        ("epsilon", -1.0),
        ("epsilon", "4"),
        ("epsilon", True),
        ("epsilon", float("nan")),
        ("delta", float("inf")),
        ("delta", None),
        ("at", 1.5),
        ("at", -1),
        ("horizons", 0),
        ("horizons", -3),
        ("horizons", 2.0),
        ("horizons", True),
    ],
)
def test_a_damaged_charge_is_none(field: str, value: object) -> None:
    record = json.loads(Charge.of(deployed()).to_bytes())
    damaged = json.dumps({**record, field: value}).encode()
    with pytest.raises(CodecError, match="not a charge"):
        Charge.from_bytes(damaged)


def test_charges_of_earlier_software_are_for_one_horizon() -> None:
    record = json.loads(Charge.of(deployed()).to_bytes())
    del record["horizons"]
    assert Charge.from_bytes(json.dumps(record).encode()).horizons == 1


def test_deploying_fixes_the_horizons_and_charges_for_all_of_them() -> None:
    cluster = cast(Cluster, MemoryCluster())

    def begin(name: str, budget: float | None) -> DeployedJob:
        job = renewing(name=name, budget=None if budget is None else {"epsilon": budget})
        values = {key: value for key, value in job.to_json().items() if value is not None}
        return deploy(cluster, make_job(values), deployment=name.encode() * 16, now=5)

    assert begin("a", 21).horizons == 5
    assert [charge.horizons for charge in charges(cluster)] == [5]
    assert read_jobs(cluster).jobs["a"].last_epoch == 40
    for budget in (21, 99, None):
        with pytest.raises(BudgetError, match="1 earlier deployment took 20 and this one would"):
            begin("b", budget)


def counted(*, renew: bool = False, **keys: object) -> DeployedJob:
    job = make_job(
        {
            "name": "items",
            "protocol": "count_min",
            "parameters": {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b"]},
            "epochs": {"count": 20, "renew": renew},
            "shuffle": {"minimum": 1000},
            **keys,
        }
    )
    return deploy_job(job, deployed_at=5)


def test_epochs_that_stand_alone_are_charged_with_what_they_lose_together() -> None:
    """Their loss is composed with the delta of one of them, and charged once."""
    job = counted()
    guarantee, charge = job.guarantee(), Charge.of(job)
    assert (guarantee.unit, guarantee.epsilon) == ("epoch", 1)
    assert guarantee.stream_epsilon is not None
    assert 3 < guarantee.stream_epsilon < 20
    assert (charge.epsilon, charge.delta) == (guarantee.stream_epsilon, 1e-6)
    check_budget(counted(budget={"epsilon": charge.epsilon, "delta": 1e-6}), [])
    for little in ({"epsilon": 3.0, "delta": 1e-6}, {"epsilon": 20, "delta": 1e-7}):
        with pytest.raises(BudgetError, match="and this one would take"):
            check_budget(counted(budget=little), [])


def test_horizons_of_such_epochs_are_charged_one_by_one() -> None:
    once = Charge.of(counted()).epsilon
    job = counted(renew=True, budget={"epsilon": 3.5 * once, "delta": 0.1})
    assert horizons_within_budget(job, []) == 3
    assert Charge.of(job).epsilon == once
