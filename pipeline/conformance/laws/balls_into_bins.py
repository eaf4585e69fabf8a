"""What the devices of the smallest window can send where there is a bucket for every item.

With more items than buckets there are too many words to enumerate what can be seen: that is done in
tests/randomizers/test_overlapping_cells.py.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise
from math import factorial, prod

import numpy as np

from pipeline.conformance.cases import Stream, View
from randomizers.balls_into_bins import BallsIntoBinsLaw


class ExactLaw:
    """By enumeration of all multisets of dummies."""

    def __init__(self, law: BallsIntoBinsLaw, last_epoch: int) -> None:
        assert last_epoch == 1
        assert law.size <= law.buckets
        self.devices = law.noise.minimum
        self.dummies: dict[tuple[int, ...], Fraction] = {}
        for number, likely in enumerate(self._numbers(law)):
            for drawn in combinations_with_replacement(range(law.buckets), number):
                orders = factorial(number) // prod(map(factorial, Counter(drawn).values()))
                self.dummies[drawn] = likely * Fraction(orders, law.buckets**number)

    def followed(self, stream: Stream) -> bool:
        """Any stream is."""
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
        (held,) = stream
        real = [item - 1 for item in held if item]
        return {
            (tuple((word,) for word in sorted((*drawn, *real))),): likely
            for drawn, likely in self.dummies.items()
            if likely
        }

    @staticmethod
    def _numbers(law: BallsIntoBinsLaw) -> list[Fraction]:
        """Probability of every number of dummies that so many devices send together."""
        assert law.dummies is not None
        total = np.array([Fraction(1)])
        for table, times in law.dummies.tables(law.noise.minimum):
            bounds = [*[0] * table.first, 0, *table.bounds]
            one = np.array([Fraction(high - low, 1 << 128) for low, high in pairwise(bounds)])
            for _ in range(times):
                total = np.convolve(total, one)
        return list(total)
