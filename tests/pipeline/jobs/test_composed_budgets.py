"""Budgets under which charges are composed by a filter, beside others that add them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpstream.pipeline.jobs.budgets import BudgetError, Charge, accounts_of, check_budget, filter_of
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.jobs.stated_budgets import BY_COMMAND, StatedBudget, binding_budget
from dpstream.topics.frames import CodecError

COMPOSED = StatedBudget(
    "students", 17.0, 1e-6, "dpstream budget", BY_COMMAND, 5, True, "ticket 12", composed=True
)


def job(epsilon: float = 1.0) -> DeployedJob:
    """A job without delta."""
    values = {
        "name": "last",
        "protocol": "future_rand",
        "parameters": {"epsilon": epsilon, "changes": 2},
        "epochs": {"count": 8},
        "population": "students",
    }
    return deploy_job(make_job(values), deployed_at=5)


def small(count: int, delta: float = 0.0, epsilon: float = 0.25) -> list[Charge]:
    return [
        Charge("students", "weekly", f"{each:032x}", epsilon, delta, 5) for each in range(count)
    ]


def stated_by_a_job(epsilon: float, delta: float) -> StatedBudget:
    return StatedBudget("students", epsilon, delta, "first", "ab" * 16, 6)


def test_many_small_charges_have_room_where_their_sum_has_none() -> None:
    """A hundred of 1/4 and one of 1: added 26, by the filter less than 17."""
    check_budget(job(), small(100), [COMPOSED])
    with pytest.raises(BudgetError, match=r"17 in all, as .* would take 1 \(composed 19"):
        check_budget(job(), small(140), [COMPOSED])
    with pytest.raises(BudgetError, match="100 earlier deployments took 25 and this one would"):
        check_budget(job(), small(100), [replace(COMPOSED, composed=False)])
    (epsilon, _) = accounts_of(job(), small(100), [COMPOSED])
    assert epsilon.filtered is not None
    assert 15 < epsilon.filtered < 17
    assert epsilon.remaining == pytest.approx(17 - epsilon.filtered)


def test_few_large_charges_are_added_under_it_too() -> None:
    check_budget(job(8.0), small(36), [COMPOSED])
    with pytest.raises(BudgetError, match="and this one would take 8"):
        check_budget(job(8.0), [*small(4), *small(1, epsilon=9.0)], [COMPOSED])
    (epsilon, _) = accounts_of(job(8.0), small(36), [COMPOSED])
    assert epsilon.remaining == 0, "the smaller figure is the one that counts"


def test_the_charges_own_deltas_have_half_of_it() -> None:
    """Whoever admits them: the filter's half is spoken for."""
    check_budget(job(), small(5, delta=1e-7), [COMPOSED])
    with pytest.raises(BudgetError, match="may be charged delta 5e-07 in all, as an operator"):
        check_budget(job(), small(6, delta=1e-7), [COMPOSED])
    check_budget(job(), small(6, delta=1e-7), [replace(COMPOSED, composed=False)])
    binding = binding_budget("students", [COMPOSED, stated_by_a_job(20, 7e-7)])
    assert binding["delta"] is COMPOSED, "half of it is less"


def test_every_budget_that_stands_has_to_bear_the_charges() -> None:
    """A larger one that adds them is not kept by the filter of another."""
    charges = small(100)
    check_budget(job(), charges, [COMPOSED, stated_by_a_job(26, 1e-6)])
    adding = [COMPOSED, stated_by_a_job(25, 1e-6)]
    with pytest.raises(BudgetError, match="may be charged epsilon 25 in all, as job first"):
        check_budget(job(), charges, adding)
    (epsilon, _) = accounts_of(job(), charges, adding)
    assert (epsilon.allowed, epsilon.remaining, epsilon.filtered) == (25, -1, None)
    with pytest.raises(BudgetError, match="may be charged epsilon 9 in all, as job first"):
        check_budget(job(), charges, [COMPOSED, stated_by_a_job(9, 1e-6)])
    set_anew = replace(COMPOSED, at=9, reason="again")
    check_budget(job(), charges, [stated_by_a_job(9, 1e-6), set_anew])


def test_charges_without_end_have_no_filter() -> None:
    endless = replace(small(1)[0], horizons=None)
    with pytest.raises(BudgetError, match="without end"):
        check_budget(job(), [endless], [COMPOSED])


def test_without_delta_nothing_is_composed() -> None:
    assert filter_of(COMPOSED) is not None
    for other in (replace(COMPOSED, composed=False), replace(COMPOSED, delta=0.0)):
        assert filter_of(other) is None


def test_composed_budget_survives_encoding() -> None:
    assert StatedBudget.from_bytes(COMPOSED.to_bytes()) == COMPOSED
    summed = replace(COMPOSED, composed=False)
    assert StatedBudget.from_bytes(summed.to_bytes()) == summed
    for wrong in (b'"composed": 1', b'"composed": null'):
        with pytest.raises(CodecError):
            StatedBudget.from_bytes(COMPOSED.to_bytes().replace(b'"composed": true', wrong))
    with pytest.raises(CodecError):
        StatedBudget.from_bytes(COMPOSED.to_bytes().replace(b'"ticket 12"', b"7"))
    assert COMPOSED.who == "an operator set it by dpstream budget (1970-01-01: ticket 12)"
    lifted = replace(COMPOSED, epsilon=None, delta=None)
    assert "an operator lifted it" in lifted.who
