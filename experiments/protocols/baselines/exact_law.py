"""Exact output distributions of baseline devices, by enumeration.

Baselines that use FutureRand's devices also use its exact law, for any distribution of signs.
tests/experiments/protocols/test_comparisons.py checks that this distribution is the published one.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import prod

from dpstream.pipeline.conformance import cases
from dpstream.pipeline.conformance.cases import Stream, View, independent
from dpstream.pipeline.conformance.laws import future_rand
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.dyadic import FutureRandLaw
from experiments.protocols.baselines import MemoizedResponseLaw, SplitBudgetLaw


def exact_law(law: object, last_epoch: int) -> cases.ExactLaw:
    match law:
        case FutureRandLaw():
            return future_rand.ExactFutureRand(law, last_epoch)
        case SplitBudgetLaw():
            return SplitResponses(law)
        case MemoizedResponseLaw():
            return MemoizedResponses(law)
    raise TypeError(f"{type(law).__name__} has no exact law")


class SplitResponses:
    """Enumerate all bits; each independently equals the value or not."""

    devices = 1

    def __init__(self, law: SplitBudgetLaw) -> None:
        self.kept, _ = reversal(law.response)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return independent(
            {((bit,),): self.kept if bit == value else 1 - self.kept for bit in (0, 1)}
            for value in stream
        )


class MemoizedResponses:
    """Enumerate the permanent responses and all instantaneous reversals."""

    devices = 1

    def __init__(self, law: MemoizedResponseLaw) -> None:
        self.permanent = reversal(law.permanent)
        self.instantaneous = reversal(law.instantaneous)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        for reversals in product((0, 1), repeat=2):
            drawn = prod(self.permanent[reversed_] for reversed_ in reversals)
            for coins in product((0, 1), repeat=len(stream)):
                sent = tuple(
                    ((value ^ reversals[value] ^ coin,),)
                    for value, coin in zip(stream, coins, strict=True)
                )
                probabilities[sent] += drawn * prod(self.instantaneous[coin] for coin in coins)
        return dict(probabilities)


def reversal(law: ComposedLaw) -> tuple[Fraction, Fraction]:
    """Return the probability that a bit is kept, and the probability that it is reversed."""
    kept, reversed_ = law.weights
    return Fraction(kept, kept + reversed_), Fraction(reversed_, kept + reversed_)
