"""Recompute losses over many epochs by enumerating all outcomes of composed small mechanisms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed.small_laws import (
    Pair,
    excess,
    finding,
    less_than_it_is,
    mirrored,
    repeated,
    together,
)
from dpstream.pipeline.conformance.divergences import exponential, neighbors_of
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.randomizers.accounting.loss_distributions import LossDistribution, Losses, composed
from dpstream.randomizers.accounting.shifted_noise import delta_of_tables

_HORIZONS = 3
RENEWED = ("future_rand", "shuffled_counts")


def renewed_horizons() -> Iterator[Finding]:
    for name in RENEWED:
        yield finding("renewed horizons", f"{_HORIZONS} horizons of {name}", _renewed(name))


def _less(what: str, stated: float, odds: Fraction) -> str:
    if exponential(stated, rounded_up=True) >= odds:
        return ""
    return f"states a loss of {stated:.6g} for {what}; the true loss is {math.log(odds):.6g}"


def _renewed(name: str) -> Iterator[str]:
    """Check two streams that repeat in every horizon, with independent draws for each horizon."""
    case = find_cases(name)[0]
    guarantee = case.protocol.randomizer(case.law).guarantee
    for one, other in neighbors_of(case, guarantee):
        views, others = case.views[one], case.views[other]
        certain = sum((likely for view, likely in views.items() if view not in others), Fraction())
        odds = max(likely / others[view] for view, likely in views.items() if view in others)
        for horizons in range(1, _HORIZONS + 1):
            over, what = guarantee.over(horizons), f"{horizons} horizons of {name}"
            if guarantee.delta == 0:
                yield _less(what, over.epsilon, odds**horizons)
            yield less_than_it_is(what, over.delta, 1 - (1 - certain) ** horizons)


MECHANISMS: Mapping[str, Pair] = {
    "randomized response": [(3, 1), (1, 3)],
    "an outcome possible for only one input": [(1, 0), (59, 30), (30, 59), (10, 11)],
    "a rare outcome with a large loss": [(40, 1), (40_000, 40_000), (1, 40)],
}
TIMES = (1, 3, 10, 100)
# With more kinds of outcomes, 100 draws have too many outcomes to enumerate.
_FEW_TIMES, _KINDS = (1, 3, 10), 3
_WIDTH = 0.004
# Absolute accuracy of small fractions' logarithms.
_SLACK = 1e-14


def compositions() -> Iterator[Finding]:
    """Check the losses that `composed` states, and the bounds from other compositions."""
    for name, pair in MECHANISMS.items():
        yield finding("compositions", f"{name}, up to 100 times", _repetitions(pair))
    yield finding("compositions", "two kinds of mechanisms together", _two_kinds())
    yield finding("compositions", "output distributions with small sampling errors", _tables())


def losses_of(pair: Pair) -> Losses:
    total = sum(one for one, _ in pair)
    others = sum(other for _, other in pair)
    both = [(one, other) for one, other in pair if one and other]
    certain = Fraction(sum(one for one, other in pair if not other), total)
    return Losses(
        np.log([one * others / (other * total) for one, other in both]),
        np.array([one / total for one, _ in both]),
        math.nextafter(float(certain), 1.0) if certain else 0.0,
        _SLACK,
        _SLACK,
    )


def _repetitions(pair: Pair) -> Iterator[str]:
    for times in TIMES if len(pair) <= _KINDS else _FEW_TIMES:
        outcomes = list(repeated(pair, times))
        total = sum(one for one, _ in outcomes)
        for each, seen in ((pair, outcomes), (mirrored(pair), mirrored(outcomes))):
            stated = composed([(losses_of(each), times)], _WIDTH)
            yield from _compared(f"{times} draws", stated, seen, total)


def _two_kinds() -> Iterator[str]:
    one, other = (
        MECHANISMS["randomized response"],
        MECHANISMS["an outcome possible for only one input"],
    )
    seen = list(together([list(repeated(one, 5)), list(repeated(other, 3))]))
    total = sum(weight for weight, _ in seen)
    for turned in (False, True):
        kinds = [mirrored(each) if turned else each for each in (one, other)]
        stated = composed([(losses_of(kinds[0]), 5), (losses_of(kinds[1]), 3)], _WIDTH)
        yield from _compared("5 and 3 draws", stated, mirrored(seen) if turned else seen, total)


def _compared(what: str, stated: LossDistribution, seen: Pair, total: int) -> Iterator[str]:
    """Compare deltas at epsilons up to the largest loss, and epsilons at a few deltas."""
    most = max(math.log(one) - math.log(other) for one, other in seen if one and other)
    for share in (0.0, 0.1, 0.3, 0.6, 0.9, 0.999):
        epsilon = share * most
        least = excess(seen, epsilon, total)
        yield less_than_it_is(f"{what} and epsilon {epsilon:.4g}", stated.delta(epsilon), least)
    for delta in (0.2, 1e-3, 1e-9):
        epsilon = stated.epsilon(delta)
        if math.isfinite(epsilon):
            least = excess(seen, epsilon, total)
            yield less_than_it_is(f"{what} and epsilon {epsilon:.4g}", delta, least)


def _tables() -> Iterator[str]:
    """Check the increase in delta if tables differ slightly from their distributions."""
    for epsilon in (0.5, 2.0):
        factor = exponential(epsilon, rounded_up=False)
        other = Fraction(1, 8)
        one = factor * other
        for distance in (2.0**-30, 2.0**-10):
            off = Fraction(distance)
            for draws in (1, 3, 10):
                exact, moved = (
                    _of_draws(one + by, other - by, draws, epsilon * draws) for by in (0, off)
                )
                growth = moved - exact
                stated = delta_of_tables(epsilon * draws, distance, draws)
                what = f"{draws} draws, each within {distance:.3g} of its distribution"
                yield less_than_it_is(what, stated, growth)


def _of_draws(one: Fraction, other: Fraction, draws: int, epsilon: float) -> Fraction:
    total = math.lcm(one.denominator, other.denominator)
    pair = [
        (int(one * total), int(other * total)),
        (int((1 - one) * total), int((1 - other) * total)),
    ]
    return excess(list(repeated(pair, draws)), epsilon, total**draws)
