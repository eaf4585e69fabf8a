"""Describe guarantees and budgets in sentences for readers without background knowledge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration, standing_for
from dpstream.pipeline.jobs.budgets import Charge, accounts_for, period_budgets, total_of
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.randomizers.guarantee import (
    WITHIN,
    Guarantee,
    format_loss,
    needs_no_trust,
    percent_right,
    rounded_down,
    rounded_up,
)

# Odds of one to ten trillion (e^30) protect nothing.
_PROTECTS_NOTHING = 30.0
_BASES = {
    "exact": "This factor is exact, computed from the distribution that is sampled.",
    "bound": "This is a proven upper bound.",
}


def guarantee_description(guarantee: Guarantee) -> list[str]:
    """Describe a guarantee, its adversary, and the meaning of epsilon as odds.

    >>> stream = Guarantee(1.0, 0.0, "stream", "any two streams", "none", "exact")
    >>> for sentence in guarantee_description(stream):
    ...     print(sentence)
    Trusted party: none.
    Protected: the difference between any two streams.
    Whatever is observed, one user's own reports shift the odds of any guess about their whole \
stream by at most a factor of 2.72 (epsilon 1): a guess that was 50 % likely is right in at most \
73.2 % of cases. This factor is exact, computed from the distribution that is sampled.
    """
    return list(_guarantee_description(guarantee))


def _guarantee_description(guarantee: Guarantee) -> Iterator[str]:
    yield trusted_words(guarantee.trust)
    yield f"Protected: the difference between {guarantee.neighbors}."
    observed = "Whatever is observed, one user's own reports"
    about = f"any guess about their {guarantee.subject}"
    if guarantee.unit == "epoch":
        observed = "One user's own reports of one epoch"
        about = "any guess about their value in that epoch"
    if guarantee.only_removal:
        about = "a guess about whether they have these items or none"
    delta, whole = guarantee.delta, guarantee.stream_epsilon
    odds = posterior_odds(guarantee.epsilon, delta)
    yield f"{observed} shift the odds of {about} by at most {odds}. {_BASES[guarantee.basis]}"
    if whole is not None:
        stream, further = "a user's whole stream", ""
        if guarantee.horizons is not None:
            one = guarantee.unit == "epoch"
            further = " Every further horizon costs the same again." * one
            horizons = 1 if one else guarantee.horizons
            stream = f"the {replace(guarantee, unit='stream', horizons=horizons).subject}"
        # The epsilon of a value that never changes is a bound; that of the whole stream is exact.
        basis = _BASES["bound" if guarantee.unit == "epoch" else "exact"]
        yield f"For {stream} it is {posterior_odds(whole, delta)}. {basis}{further}"
    if guarantee.rolling is not None:
        rolling = guarantee.rolling
        yield (
            f"{str(rolling).capitalize()}: for {WITHIN}, the same reports shift the odds by at "
            f"most {posterior_odds(rolling.epsilon)}."
        )
    if guarantee.only_removal:
        larger = "above, with a larger delta" if delta else "above"
        yield f"A guess between two sets of items may shift by the square of each factor {larger}."
    if guarantee.shuffled is not None:
        shuffled = guarantee.shuffled
        covered = (
            "For a user whose every report is shuffled among "
            f"{shuffled.contributors:,} of its window"
            if shuffled.one_window
            else "For a user who reports in every window, shuffled among "
            f"{shuffled.contributors:,} such users"
        )
        yield (
            f"{covered}, it is "
            f"{posterior_odds(shuffled.epsilon, shuffled.delta)}. "
            f"{_BASES['bound']} It relies on {shuffled.trust}."
        )


def trusted_words(trust: str) -> str:
    """Format the trusted parties as a sentence.

    >>> trusted_words("none; it holds against everyone")
    'Trusted party: none. The guarantee holds against everyone.'
    >>> trusted_words("the shuffler to shuffle")
    'The guarantee relies on the shuffler to shuffle.'
    """
    if not needs_no_trust(trust):
        return f"The guarantee relies on {trust}."
    rest = trust.removeprefix("none").lstrip(":; ")
    if not rest:
        return "Trusted party: none."
    if rest.startswith("it "):
        rest = f"the guarantee {rest.removeprefix('it ')}"
    return f"Trusted party: none. {rest[:1].upper()}{rest[1:]}."


def trusted_party(trust: str) -> str:
    """Return the first trusted party in a few words.

    >>> trusted_party("none; it holds against everyone")
    'none'
    >>> trusted_party("the shuffler to shuffle, and 999 other honest users")
    'the shuffler'
    """
    if needs_no_trust(trust):
        return "none"
    return trust.partition(",")[0].partition(" to ")[0]


def posterior_odds(epsilon: float, delta: float = 0.0) -> str:
    """Explain the meaning of an epsilon and a delta; all numbers are rounded up.

    >>> posterior_odds(4.0)
    'a factor of 54.6 (epsilon 4): a guess that was 50 % likely is right in at most 98.3 % of cases'
    """
    if epsilon > _PROTECTS_NOTHING:
        return f"a factor that protects nothing (epsilon {_up(epsilon, 4)})"
    factor = f"a factor of {_up(math.exp(epsilon), 3)} (epsilon {_up(epsilon, 4)})"
    right = percent_right(epsilon, delta)
    text = f"a guess that was 50 % likely is right in at most {right} of cases"
    if right == "100 %":
        text = "a guess that was 50 % likely may become almost certain"
    if not delta:
        return f"{factor}: {text}"
    return (
        f"{factor}. Larger shifts can occur, but the probability of any conclusion exceeds what "
        f"this factor allows by at most {_chance(delta)} (delta). {text[0].upper()}{text[1:]}"
    )


def _up(number: float, digits: int) -> str:
    return f"{Decimal(rounded_up(number, digits)):,f}"


def _chance(delta: float) -> str:
    return f"1 in {math.floor(1 / Fraction(repr(delta))):,}"


def budget_of(
    job: DeployedJob, charges: Iterable[Charge], declared: Iterable[BudgetDeclaration] = ()
) -> dict[str, Any]:
    """Return a job's guarantee, and its population's charges and remaining budget.

    `charges` and `declared` are all charges and budget declarations on the cluster, in order.
    """
    own = [each for each in charges if each.population == job.population_name]
    guarantee = job.guarantee
    charged = {name: total_of(own, name) for name in ("epsilon", "delta")}
    standing = standing_for(job, declared)
    accounts = accounts_for(job.population_name, own, standing)
    bound = all(each.binding is not None for each in accounts)
    allowed = {each.quantity: each.allowed or 0.0 for each in accounts} if bound else None
    filtered = accounts[0].filtered
    if filtered is not None and (charged["epsilon"] is None or filtered >= charged["epsilon"]):
        filtered = None
    left = {each.quantity: each.remaining for each in accounts}
    remaining = None
    if None not in left.values():
        remaining = {name: max(0.0, amount or 0.0) for name, amount in left.items()}
    body = {
        "population": job.population_name,
        "declared": {"epsilon": guarantee.epsilon, "delta": guarantee.delta},
        "charged": {
            name: None if total is None else float(total) for name, total in charged.items()
        },
        "filtered": filtered,
        "allowed": allowed,
        "remaining": remaining,
        "periods": period_budgets(standing, own),
    }
    return body | {"description": list(_budget_words(job, len(own), body))}


def budget_line(budget: dict[str, Any]) -> str:
    """Format a budget in a few words.

    >>> budget_line({"charged": {"epsilon": 2.0}, "allowed": {"epsilon": 6.0}})
    'epsilon 2 of 6 charged in total'
    """
    charged = budget["charged"]["epsilon"]
    for limit, counted in budget.get("periods", ()):
        return f"{limit}: {counted.partition(';')[0]}"
    if charged is None:
        return "charged without limit"
    if budget["allowed"] is None:
        return f"epsilon {_up(charged, 4)} charged in total; no limit is set"
    composed = ""
    if (filtered := budget.get("filtered")) is not None:
        charged, composed = filtered, ", with advanced composition"
    allowed = _up(budget["allowed"]["epsilon"], 4)
    return f"epsilon {_up(charged, 4)} of {allowed} charged in total{composed}"


def _budget_words(job: DeployedJob, charges: int, budget: dict[str, Any]) -> Iterator[str]:
    people = f"population {job.population_name}"
    epsilon, delta = budget["charged"]["epsilon"], budget["charged"]["delta"]
    allowed, remaining, filtered = budget["allowed"], budget["remaining"], budget["filtered"]
    if job.replay_of is not None:
        yield "This is a replay: it reads data that is already released, and charges no epsilon."
    deployments = "1 deployment has" if charges == 1 else f"{charges:,} deployments have"
    if epsilon is None:
        yield (
            f"A recurring job about {people} was deployed without a limit, so the total charge has "
            "no limit."
        )
    elif charges:
        yield (
            f"So far, {deployments} charged {format_loss(epsilon, delta)} in total to {people}. An "
            "observer may combine the data of all deployments. If the guarantee of each deployment "
            "holds against this observer, the odds of any guess that all of them cover shift by "
            f"at most {posterior_odds(epsilon, delta)}."
        )
    else:
        yield f"Nothing has been charged to {people} yet."
    for limit, counted in budget["periods"]:
        yield f"The budget is {limit}: {counted}."
    if allowed is None and budget["periods"]:
        return
    if allowed is None:
        yield "No budget is set: further jobs can charge this population without limit."
    elif remaining is not None:
        if filtered is not None:
            yield (
                f"With advanced composition (privacy filter), this counts as epsilon "
                f"{_up(filtered, 4)}. The budget holds even if jobs are chosen on the basis of "
                "earlier results."
            )
        least = "at least " * (filtered is not None)
        left = f"{least}{rounded_down(remaining['epsilon'], 4)} remains"
        if remaining["epsilon"] <= 0 or delta > allowed["delta"]:
            left = "nothing remains: further jobs are rejected"
        elif allowed["delta"] and remaining["delta"] <= 0:
            spent = f"of delta {rounded_up(allowed['delta'])}, nothing"
            left = f"{left}; {spent}: further jobs with a delta are rejected"
        yield f"Of the budget of epsilon {_up(allowed['epsilon'], 4)}, {left}."
