"""Answers that are drawn once, and horizons that are drawn anew: all reports there can be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from dpstream.pipeline.audit.findings import Finding
from dpstream.pipeline.audit.recomputed.small_laws import finding, less_than_it_is
from dpstream.pipeline.conformance.divergences import exponential, neighbours_of
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.permanent_loss import stream_loss, unchanged_loss

_ODDS = ((ComposedLaw((20, 1)), ComposedLaw((5, 1))), (ComposedLaw((3, 1)), ComposedLaw((30, 1))))
_REPORTS, _HORIZONS = 4, 3
RENEWED = ("future_rand", "memoized_response", "shuffled_counts")


def answers_and_horizons() -> Iterator[Finding]:
    """Permanent answers by all their reports; renewed horizons by all views of each."""
    for permanent, report in _ODDS:
        yield finding(
            "permanent answers",
            f"up to {_REPORTS} reports of answers with odds of {permanent.weights[0]}, each with "
            f"{report.weights[0]}",
            _permanent(permanent, report),
        )
    for name in RENEWED:
        yield finding("renewed horizons", f"{name}, {_HORIZONS} of them", _renewed(name))


def _reports(permanent: ComposedLaw, report: ComposedLaw, stream: tuple[int, ...]) -> list[int]:
    """The weights of all reports there can be of a stream, in one order."""
    weights = dict.fromkeys(product((0, 1), repeat=len(stream)), 0)
    for answers in product((0, 1), repeat=2):
        drawn = math.prod(permanent.weights[bit != answer] for bit, answer in enumerate(answers))
        for seen in weights:
            weights[seen] += drawn * math.prod(
                report.weights[sent != answers[value]]
                for sent, value in zip(seen, stream, strict=True)
            )
    return list(weights.values())


def _permanent(permanent: ComposedLaw, report: ComposedLaw) -> Iterator[str]:
    for epochs in range(1, _REPORTS + 1):
        weights = {
            stream: _reports(permanent, report, stream) for stream in product((0, 1), repeat=epochs)
        }
        for bits in (1, 2):
            still = _largest(weights[(0,) * epochs], weights[(1,) * epochs])
            stated = unchanged_loss(permanent, report, epochs, bits)
            yield _less(f"{epochs} reports of {bits} bits that stay", stated, still**bits)
            whole = max(
                _largest(one, other) for one in weights.values() for other in weights.values()
            )
            stated = stream_loss(permanent, report, epochs, bits)
            yield _less(f"{epochs} reports of {bits} bits that change", stated, whole**bits)


def _largest(one: list[int], other: list[int]) -> Fraction:
    return max(max(Fraction(a, b), Fraction(b, a)) for a, b in zip(one, other, strict=True))


def _less(what: str, stated: float, odds: Fraction) -> str:
    if exponential(stated, rounded_up=True) >= odds:
        return ""
    return f"states a loss of {stated:.6g} for {what}, and it is {math.log(odds):.6g}"


def _renewed(name: str) -> Iterator[str]:
    """The same two streams in every horizon, each horizon with draws of its own."""
    case = find_cases(name)[0]
    guarantee = case.protocol.randomizer(case.law).guarantee
    for one, other in neighbours_of(case, guarantee):
        views, others = case.views[one], case.views[other]
        certain = sum((likely for view, likely in views.items() if view not in others), Fraction())
        odds = max(likely / others[view] for view, likely in views.items() if view in others)
        for horizons in range(1, _HORIZONS + 1):
            over, what = guarantee.over(horizons), f"{horizons} horizons of {name}"
            if guarantee.delta == 0:
                yield _less(what, over.epsilon, odds**horizons)
            yield less_than_it_is(what, over.delta, 1 - (1 - certain) ** horizons)
