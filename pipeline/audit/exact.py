"""Compute an example's largest privacy loss from the probabilities of all views."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.audit.audits import AuditOutcome, Finding
from dpstream.pipeline.conformance.cases import Case, Stream
from dpstream.pipeline.conformance.divergences import divergence, exponential, neighbors_of
from dpstream.randomizers.guarantee import Guarantee

ATTACK = "likelihood ratios"
# Relative difference above which a floating-point comparison is certain.
_CERTAIN = 1e-9


def enumerate_losses(case: Case) -> Iterator[Finding]:
    guarantee = case.protocol.randomizer(case.law).guarantee
    yield largest_loss(case, guarantee)
    if guarantee.stream_epsilon is not None and case.last_epoch > 1:
        whole = replace(
            guarantee, unit="stream", epsilon=guarantee.stream_epsilon, stream_epsilon=None
        )
        yield largest_loss(case, whole)


def largest_loss(case: Case, guarantee: Guarantee) -> Finding:
    laws, shares = case.views, _shares(case)
    factor = exponential(guarantee.epsilon, rounded_up=False)
    delta, certain = Fraction(guarantee.delta), float(factor)
    largest, exceeded = 0.0, None
    for one, other in neighbors_of(case, guarantee):
        ratio = _ratio(shares[one], shares[other], guarantee.delta)
        if ratio > certain * (1 - _CERTAIN):
            if divergence(laws[one], laws[other], factor) > delta:
                exceeded = exceeded or (one, other)
            else:
                # Floating point had overestimated the ratio.
                ratio = min(ratio, certain)
        largest = max(largest, ratio)
    observed = math.inf if math.isinf(largest) else math.log(max(largest, 1.0))
    return Finding(
        str(case),
        ATTACK,
        f"{guarantee.unit}: all views of {len(case.streams):,} inputs, {case.last_epoch} "
        f"epoch{'' if case.last_epoch == 1 else 's'}",
        AuditOutcome.EXACT if exceeded is None else AuditOutcome.FAILED,
        claimed=guarantee.epsilon,
        delta=guarantee.delta,
        observed=observed,
        reason="" if exceeded is None else _reason(guarantee, observed, *exceeded),
    )


def _shares(case: Case) -> dict[Stream, NDArray[np.float64]]:
    places: dict[object, int] = {}
    for law in case.views.values():
        for view in law:
            places.setdefault(view, len(places))
    found = {}
    for stream, law in case.views.items():
        found[stream] = shares = np.zeros(len(places))
        for view, probability in law.items():
            shares[places[view]] = float(probability)
    return found


def _ratio(one: NDArray[np.float64], other: NDArray[np.float64], delta: float) -> float:
    """Return the largest (P(set) - delta) / Q(set) over sets of views with the largest P / Q."""
    seen = one > 0
    one, other = one[seen], other[seen]
    with np.errstate(divide="ignore"):
        order = np.argsort(-(one / other), kind="stable")
    above, below = np.cumsum(one[order]) - delta, np.cumsum(other[order])
    alone = below == 0
    # Probabilities that underflow are decided exactly.
    if (above[alone] > 0).any():
        return math.inf
    return float((above[~alone] / below[~alone]).max(initial=0.0))


def _reason(guarantee: Guarantee, observed: float, one: Stream, other: Stream) -> str:
    lost = "with certainty" if math.isinf(observed) else f"by epsilon {observed:.4g}"
    also = f" with delta {guarantee.delta:g}" if guarantee.delta else ""
    return (
        f"claims epsilon {guarantee.epsilon:.6g}{also}, but the values {', '.join(map(str, one))} "
        f"can be distinguished from {', '.join(map(str, other))} {lost}{also}"
    )
