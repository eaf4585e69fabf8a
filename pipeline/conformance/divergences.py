"""Divergence between neighbors, computed exactly from the probabilities of all views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import permutations

from dpstream.pipeline.conformance.cases import Case, Stream, View
from dpstream.randomizers.guarantee import Guarantee


def largest_divergence(case: Case, guarantee: Guarantee, factor: Fraction) -> Fraction:
    """Return the least delta that holds for all neighbors, with epsilon = ln factor."""
    return max(
        divergence(case.views[one], case.views[other], factor)
        for one, other in neighbors_of(case, guarantee)
    )


def neighbors_of(case: Case, guarantee: Guarantee) -> Iterator[tuple[Stream, Stream]]:
    for one, other in neighbors(case.streams, guarantee):
        if not guarantee.only_removal or differ_by_removal(one, other):
            yield one, other


def differ_by_removal(one: Stream, other: Stream) -> bool:
    """Return whether one of two streams is empty at all epochs at which they differ."""
    return all(a == b or not any(a) or not any(b) for a, b in zip(one, other, strict=True))


def divergence(
    one: Mapping[View, Fraction], other: Mapping[View, Fraction], factor: Fraction
) -> Fraction:
    """Return the largest P(set) - factor * Q(set) over all sets of views, exactly.

    Fractions are compared only where floating point is uncertain.
    """
    certain, total = float(factor) * (1 - 1e-9), Fraction()
    for view, probability in one.items():
        likely = other.get(view)
        if likely is None:
            total += probability
        elif not 0 < float(probability) < certain * float(likely):
            total += max(Fraction(), probability - factor * likely)
    return total


def neighbors(streams: list[Stream], guarantee: Guarantee) -> Iterator[tuple[Stream, Stream]]:
    """Yield pairs of streams: all pairs, pairs that differ in one epoch, or constant pairs."""
    for one, other in permutations(streams, 2):
        differences = sum(a != b for a, b in zip(one, other, strict=True))
        if (
            guarantee.unit == "stream"
            or (guarantee.unit == "epoch" and differences == 1)
            or (guarantee.unit == "value" and len({*one}) == len({*other}) == 1)
        ):
            yield one, other


def exponential(exponent: float, *, rounded_up: bool) -> Fraction:
    """Return e^exponent, rounded up or down in the 60th digit."""
    with localcontext() as context:
        context.prec = 60
        # Decimal.exp is correctly rounded: the true value lies between its neighbors.
        nearest = Decimal(exponent).exp()
        return Fraction(nearest.next_plus() if rounded_up else nearest.next_minus())
