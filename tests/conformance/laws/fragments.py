"""What the devices of the smallest window can send: how many bits of each cell are 1, by report."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import comb, prod
from typing import TypeAlias

from randomizers.fragments import FragmentsLaw
from tests.conformance.cases import Report, Stream, View

Counts: TypeAlias = tuple[int, ...]
"""Bits of a cell that are 1, in each report."""


class ExactLaw:
    """By enumeration of how many bits are reversed, first for all reports and then in each."""

    def __init__(self, law: FragmentsLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.minimum
        self.reversed = _reversed(law.odds.weights)
        self.stopped = _reversed(law.backstop.weights) if law.backstop else Fraction()

    def followed(self, stream: Stream) -> bool:
        """Any stream is."""
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        epochs = [self._epoch(held) for held in stream]
        return {
            tuple(seen for seen, _ in drawn): prod(
                (likely for _, likely in drawn), start=Fraction(1)
            )
            for drawn in product(*(epoch.items() for epoch in epochs))
        }

    def _epoch(self, held: tuple[int, ...]) -> dict[tuple[Report, ...], Fraction]:
        cells = [self._cell(int(item in held)) for item in range(1, self.law.items + 1)]
        likely: dict[tuple[Report, ...], Fraction] = {}
        for drawn in product(*(cell.items() for cell in cells)):
            words = sorted(
                report * self.law.items + cell
                for cell, (counts, _) in enumerate(drawn)
                for report, count in enumerate(counts)
                for _ in range(count)
            )
            seen = tuple((word,) for word in words)
            likely[seen] = prod((each for _, each in drawn), start=Fraction(1))
        return likely

    def _cell(self, held: int) -> dict[Counts, Fraction]:
        """Of one user who holds it or not, and others who do not."""
        found: defaultdict[Counts, Fraction] = defaultdict(Fraction)
        for ones, likely in self._ones(held, self.stopped).items():
            reported = self._ones(ones, self.reversed)
            for drawn in product(reported.items(), repeat=self.law.reports):
                counts = tuple(count for count, _ in drawn)
                found[counts] += likely * prod((each for _, each in drawn), start=Fraction(1))
        return dict(found)

    def _ones(self, ones: int, reversed_: Fraction) -> dict[int, Fraction]:
        """How many bits of all devices are 1 after reversals, of so many before."""
        found: defaultdict[int, Fraction] = defaultdict(Fraction)
        for lost in range(ones + 1):
            for raised in range(self.devices - ones + 1):
                likely = _binomial(ones, lost, reversed_) * _binomial(
                    self.devices - ones, raised, reversed_
                )
                if likely:
                    found[ones - lost + raised] += likely
        return dict(found)


def _reversed(weights: tuple[int, ...]) -> Fraction:
    kept, reversed_ = weights
    return Fraction(reversed_, kept + reversed_)


def _binomial(trials: int, count: int, probability: Fraction) -> Fraction:
    return comb(trials, count) * probability**count * (1 - probability) ** (trials - count)
