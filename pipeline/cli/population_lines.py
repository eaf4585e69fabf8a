"""Describe a population's total charges and remaining budget, by several ways of accounting."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dpstream.pipeline.jobs.budget_declarations import standing_budgets
from dpstream.pipeline.jobs.budgets import (
    BudgetAccount,
    accounts_for,
    filter_of,
    period_budgets,
    spent_by,
)
from dpstream.pipeline.ledger.spending import Spending
from dpstream.randomizers.accounting.charges import composed_epsilon
from dpstream.randomizers.guarantee import format_loss, rounded_down, rounded_up

# Delta of the composed epsilon, in addition to the charges' own delta, unless a budget sets it.
_SHOWN_DELTA = 1e-6


def population_pairs(state: Spending, population: str) -> Iterator[tuple[str, str]]:
    body = population_json(state, population)
    charged, count = body["charged"], body["deployments"]
    deployments = "1 deployment" if count == 1 else f"{count:,} deployments"
    if charged["epsilon"] is None:
        endless = "at least one of a recurring job without a limit"
        yield "charged", f"unlimited, by {deployments}, {endless}"
    else:
        yield (
            "added",
            f"epsilon {rounded_up(charged['epsilon'])}, delta {rounded_up(charged['delta'])}, "
            f"by {deployments}",
        )
    if body["filtered"] is not None:
        filtered = body["filtered"]
        yield (
            "filtered",
            f"{format_loss(filtered['epsilon'], filtered['delta'])}, by a Rényi filter of order "
            f"{filtered['order']:.4g}: counts against the budget, and holds even if earlier "
            "results decided which jobs followed",
        )
    if body["composed"] is not None:
        composed = body["composed"]
        yield (
            "composed",
            f"{format_loss(composed['epsilon'], composed['delta'])}, by loss distributions: for "
            "information only, and valid only if all jobs were fixed in advance",
        )
    yield from ((f"budget {limit}", text) for limit, text in body["periods"])
    if body["budget"] is None:
        if body["periods"]:
            return
        yield "budget", "none declared: any job may charge this population"
        return
    for quantity, each in body["budget"].items():
        left = "" if each["remaining"] is None else f"; {rounded_down(each['remaining'])} remaining"
        held = " for the charges themselves, the other half for composing" if each["half"] else ""
        yield f"budget {quantity}", f"{rounded_up(each['allowed'])}{held}{left}; {each['by']}"


def population_json(state: Spending, population: str) -> dict[str, Any]:
    charges = [each for each in state.charges if each.population == population]
    standing = standing_budgets(population, state.declared)
    accounts = {each.quantity: each for each in accounts_for(population, charges, standing)}
    bound = all(each.binding is not None for each in accounts.values())
    counted = [each for each in charges if each.epsilon or each.delta]
    body: dict[str, Any] = {
        "population": population,
        "deployments": len(counted),
        "charged": {name: each.earlier for name, each in accounts.items()},
        "filtered": None,
        "composed": None,
        "budget": {name: _budget(each) for name, each in accounts.items()} if bound else None,
        "periods": period_budgets(standing, charges),
    }
    spent = spent_by(counted)
    epsilon, filtered = accounts["epsilon"].binding, accounts["epsilon"].filtered
    own = None if epsilon is None else filter_of(epsilon)
    if own is not None and filtered is not None:
        body["filtered"] = {"epsilon": filtered, "delta": own.delta, "order": own.order}
    if spent and sum(each.times for each in spent) > 1:
        holder = accounts["delta"].binding
        allowed = 0.0 if holder is None or holder.delta is None else holder.delta
        delta = max(allowed, (accounts["delta"].earlier or 0.0) + _SHOWN_DELTA)
        figure = composed_epsilon(spent, delta)
        if math.isfinite(figure):
            body["composed"] = {"epsilon": figure, "delta": delta}
    return body


def _budget(account: BudgetAccount) -> dict[str, Any]:
    binding = account.binding
    assert binding is not None
    return {
        "allowed": account.allowed,
        "remaining": account.remaining,
        "half": account.quantity == "delta" and binding.composed,
        "by": binding.who,
    }
