"""Guarantees and budgets as sentences for readers without background knowledge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from fractions import Fraction
from typing import Any

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration, standing_for
from dpstream.pipeline.jobs.budgets import Charge, accounts_for, total_of
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.protocols.protocol import Exposure
from dpstream.randomizers.guarantee import Guarantee, needs_no_trust

# Odds of one to ten million millions carry no information.
_PROTECTS_NOTHING = 30.0
# Smallest displayed percentage short of certainty.
_NEXT_TO_NOTHING = Decimal("0.0001")


def guarantee_description(guarantee: Guarantee) -> list[str]:
    """Describe a guarantee, its adversary, and the meaning of epsilon as odds.

    >>> stream = Guarantee(1.0, 0.0, "stream", "any two streams", "none", "exact")
    >>> for sentence in guarantee_description(stream):
    ...     print(sentence)
    Trusted party: none.
    Protected: the difference between any two streams.
    Any observation shifts the odds of any guess about one user's whole stream by at most \
a factor of 2.72 (epsilon 1): a guess that was 50 % likely becomes at most 73.2 % likely.
    The factor is exact, computed from the distribution sampled.
    """
    return list(_guarantee_description(guarantee))


def _guarantee_description(guarantee: Guarantee) -> Iterator[str]:
    yield trusted_words(guarantee.trust)
    yield f"Protected: the difference between {guarantee.neighbors}."
    delta = (
        f", except with probability {_chance(guarantee.delta)} (delta)" if guarantee.delta else ""
    )
    yield (
        f"Any observation shifts the odds of any guess about one user's "
        f"{guarantee.subject} by at most {posterior_odds(guarantee.epsilon)}{delta}."
    )
    if guarantee.stream_epsilon is not None:
        yield f"For a user's whole stream it is {posterior_odds(guarantee.stream_epsilon)}."
    if guarantee.shuffled is not None:
        shuffled = guarantee.shuffled
        yield (
            f"Shuffled among {shuffled.contributors:,} users whose producers were in every window, "
            f"as this user's were, it is {posterior_odds(shuffled.epsilon)}, except with "
            f"probability {_chance(shuffled.delta)} (delta). This relies on {shuffled.trust}."
        )
    yield {
        "exact": "The factor is exact, computed from the distribution sampled.",
        "bound": "The factor is a proven upper bound.",
    }[guarantee.basis]


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
    >>> trusted_party("the shuffler to shuffle, and 999 honest other users")
    'the shuffler'
    """
    if needs_no_trust(trust):
        return "none"
    return trust.partition(",")[0].partition(" to ")[0]


def posterior_odds(epsilon: float) -> str:
    """Explain an epsilon; all numbers are rounded up.

    >>> posterior_odds(4.0)
    'a factor of 54.6 (epsilon 4): a guess that was 50 % likely becomes at most 98.3 % likely'
    """
    if epsilon > _PROTECTS_NOTHING:
        return f"a factor that protects nothing (epsilon {_up(epsilon, 4)})"
    return f"a factor of {_up(math.exp(epsilon), 3)} (epsilon {_up(epsilon, 4)}): {_bound(epsilon)}"


def posterior_text(epsilon: float, delta: float = 0.0) -> str:
    """Format the maximum posterior of a guess about a user, and the probability of a larger one.

    >>> posterior_text(1.0, 1e-6)
    'a guess that was 50 % likely becomes at most 73.2 % likely, except with probability 1 in \
1,000,000'
    """
    text = _bound(epsilon)
    return f"{text}, except with probability {_chance(delta)}" if delta else text


def _bound(epsilon: float) -> str:
    likely = _likely(epsilon)
    becomes = "almost certain" if likely == "100 %" else f"at most {likely} likely"
    return f"a guess that was 50 % likely becomes {becomes}"


def _likely(epsilon: float) -> str:
    """Format the maximum posterior of a guess that was 50 % likely, rounded up.

    >>> _likely(1.0), _likely(5.0), _likely(40.0)
    ('73.2 %', '99.4 %', '100 %')
    """
    factor = math.exp(min(epsilon, _PROTECTS_NOTHING))
    if factor < 99:
        return f"{_up(100 - 100 / (1 + factor), 3)} %"
    # The difference to certainty has one digit, rounded down.
    left = Context(prec=1, rounding=ROUND_DOWN).create_decimal(Decimal(repr(100 / (1 + factor))))
    return "100 %" if left < _NEXT_TO_NOTHING else f"{100 - left:f} %"


def exposure_body(exposure: Exposure) -> dict[str, Any]:
    """Return the API's description of an observer of some of a device's reports."""
    last = f"{exposure.reports[-1]:,} reports"
    sends = f"A device sends {last} at each epoch"
    if exposure.lasting:
        sends = f"For a value that stays the same, a device sends {last} in a horizon"
    return {
        "reports": list(exposure.reports),
        "epsilons": list(exposure.epsilons),
        "likely": [_likely(epsilon) for epsilon in exposure.epsilons],
        "limit": exposure.limit,
        "description": f"{sends}, all made from bits some of which it flipped beforehand. An "
        "observer who links only some of these reports learns less than an observer of all of "
        "them. Further reports would never reveal more than epsilon "
        f"{_up(exposure.limit, 4)} allows.",
    }


def _up(number: float, digits: int) -> str:
    """Format a number with `digits` significant digits, rounded up.

    >>> _up(2.7182, 3), _up(22026.4657, 3), _up(4.0, 3)
    ('2.72', '22,100', '4')
    """
    rounded = Context(prec=digits, rounding=ROUND_UP).create_decimal(Decimal(repr(number)))
    return f"{rounded.normalize():,f}"


def _chance(delta: float) -> str:
    """Format a small probability as 1 in N, rounded up.

    >>> _chance(1e-6), _chance(0.25)
    ('1 in 1,000,000', '1 in 4')
    """
    return f"1 in {math.floor(1 / Fraction(repr(delta))):,}"


def budget_of(
    job: DeployedJob, charges: Iterable[Charge], declared: Iterable[BudgetDeclaration] = ()
) -> dict[str, Any]:
    """Return a population's guarantee, charges and remaining budget.

    `charges` are of all deployments of the cluster, `declared` all its budgets declared, in order.
    """
    own = [each for each in charges if each.population == job.population_name]
    guarantee = job.guarantee
    charged = {name: total_of(own, name) for name in ("epsilon", "delta")}
    accounts = accounts_for(job.population_name, own, standing_for(job, declared))
    bound = all(each.binding is not None for each in accounts)
    allowed = {each.quantity: each.allowed or 0.0 for each in accounts} if bound else None
    filtered = accounts[0].filtered
    if filtered is not None and (charged["epsilon"] is None or filtered >= charged["epsilon"]):
        filtered = None
    left = {each.quantity: each.remaining for each in accounts}
    remaining = None
    if None not in left.values():
        remaining = {name: max(0.0, amount or 0.0) for name, amount in left.items()}
    return {
        "population": job.population_name,
        "declared": {"epsilon": guarantee.epsilon, "delta": guarantee.delta},
        "charged": {
            name: None if total is None else float(total) for name, total in charged.items()
        },
        "filtered": filtered,
        "allowed": allowed,
        "remaining": remaining,
        "description": list(
            _budget_words(job, own, charged["epsilon"], allowed, remaining, filtered)
        ),
    }


def budget_line(budget: dict[str, Any]) -> str:
    """Format a budget in a few words.

    >>> budget_line({"charged": {"epsilon": 2.0}, "allowed": {"epsilon": 6.0}})
    'epsilon 2 of 6 charged in total'
    """
    charged = budget["charged"]["epsilon"]
    if charged is None:
        return "charged without limit"
    if budget["allowed"] is None:
        return f"epsilon {_up(charged, 4)} charged in total; no limit is set"
    composed = ""
    if (filtered := budget.get("filtered")) is not None:
        charged, composed = filtered, ", composed"
    allowed = f"{budget['allowed']['epsilon']:.4g}"
    return f"epsilon {_up(charged, 4)} of {allowed} charged in total{composed}"


def _budget_words(
    job: DeployedJob,
    own: list[Charge],
    charged: Fraction | None,
    allowed: dict[str, float] | None,
    remaining: dict[str, float] | None,
    filtered: float | None,
) -> Iterator[str]:
    people = f"population {job.population_name}"
    if job.replay_of is not None:
        yield "This is a replay: it reads data that is already released, and charges no epsilon."
    deployments = "1 deployment has" if len(own) == 1 else f"{len(own):,} deployments have"
    if charged is None:
        yield (
            f"A job about {people} recurs without end: there is no limit to what it charges in "
            "total."
        )
    elif own:
        yield (
            f"So far, {deployments} charged {people} epsilon {_up(float(charged), 4)} in total. "
            f"For an observer who combines everything, that is {posterior_odds(float(charged))}."
        )
    else:
        yield f"Nothing is charged to {people} yet."
    if allowed is None:
        yield "No budget is set: further jobs can charge this population without limit."
    elif remaining is not None:
        if filtered is not None:
            yield (
                f"Composed by the filter of its budget, this counts as epsilon "
                f"{_up(filtered, 4)}, regardless of who chose the jobs."
            )
        left = remaining["epsilon"]
        yield (
            f"Of the budget of epsilon {allowed['epsilon']:.4g}, {left:.4g} remains"
            + ("; further jobs are rejected." if left <= 0 else ".")
        )
