"""What a device with memoized responses can send: by its permanent responses, and reversals."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import prod

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.memoized_response import MemoizedResponseLaw


class ExactLaw:
    """By enumeration of the permanent responses and of all that can be reversed."""

    devices = 1

    def __init__(self, law: MemoizedResponseLaw, last_epoch: int) -> None:
        self.permanent = reversal(law.permanent)
        self.instantaneous = reversal(law.instantaneous)

    def followed(self, stream: Stream) -> bool:
        """Any stream is."""
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
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
    """Probability that a bit is kept, and that it is reversed."""
    kept, reversed_ = law.weights
    return Fraction(kept, kept + reversed_), Fraction(reversed_, kept + reversed_)
