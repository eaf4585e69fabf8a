"""Exact output distribution for the smallest window with a fixed blanket: multisets of tuples.

Tuples for values and tuples of the blanket are enumerated separately, then combined. The Hadamard
matrix comes from scipy.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import factorial, prod

from scipy.linalg import hadamard

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from experiments.protocols.hadamard import HadamardLaw


class ExactHadamard:
    def __init__(self, law: HadamardLaw, last_epoch: int) -> None:
        assert law.dummies == "bernoulli"
        self.law = law
        self.devices = law.minimum
        self.matrix = hadamard(law.columns)
        self.blanket = int(law.blanket) * law.minimum

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        nothing = (0,) * self.law.slots
        return independent(self._epoch([held, *[nothing] * (self.devices - 1)]) for held in stream)

    def _epoch(self, sets: list[tuple[int, ...]]) -> dict[tuple[Report, ...], Fraction]:
        law = self.law
        rows = [item or law.items + 1 + slot for held in sets for slot, item in enumerate(held)]
        real = list(product(*(self._tuples(row) for row in rows)))
        messages = list(product(range(law.columns), repeat=law.rows))
        found: defaultdict[tuple[Report, ...], Fraction] = defaultdict(Fraction)
        for blanket in combinations_with_replacement(messages, self.blanket):
            orders = factorial(len(blanket)) // prod(map(factorial, Counter(blanket).values()))
            likely = Fraction(orders, len(messages) ** len(blanket) * len(real))
            for sent in real:
                found[tuple(sorted((*blanket, *sent)))] += likely
        return dict(found)

    def _tuples(self, row: int) -> list[Report]:
        columns = [column for column in range(self.law.columns) if self.matrix[row, column] == 1]
        return list(product(columns, repeat=self.law.rows))


exact_law = ExactHadamard
