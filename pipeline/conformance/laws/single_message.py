"""Exact output distribution for the smallest window: a Warner response or bit vector per device."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import prod

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from dpstream.randomizers.single_message import SingleMessageLaw


class ExactSingleMessage:
    def __init__(self, law: SingleMessageLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.minimum
        own, other = law.odds.weights
        self.own, self.other = Fraction(own), Fraction(other)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        nothing = (0,) * self.law.slots
        return independent(self._epoch([held, *[nothing] * (self.devices - 1)]) for held in stream)

    def _epoch(self, sets: list[tuple[int, ...]]) -> dict[tuple[Report, ...], Fraction]:
        found: defaultdict[tuple[Report, ...], Fraction] = defaultdict(Fraction)
        messages = [self._bits(held) if self.law.bits else self._symbols(held) for held in sets]
        for drawn in product(*(message.items() for message in messages)):
            seen = tuple(sorted(message for message, _ in drawn))
            found[seen] += prod((probability for _, probability in drawn), start=Fraction(1))
        return dict(found)

    def _symbols(self, held: tuple[int, ...]) -> dict[Report, Fraction]:
        weights = {
            (symbol,): self.own if (symbol,) == held else self.other
            for symbol in range(self.law.items + 1)
        }
        return {report: weight / sum(weights.values()) for report, weight in weights.items()}

    def _bits(self, held: tuple[int, ...]) -> dict[Report, Fraction]:
        likely: dict[Report, Fraction] = {}
        for message in range(1 << self.law.items):
            probability = Fraction(1)
            for item in range(1, self.law.items + 1):
                right = (message >> item - 1 & 1) == (item in held)
                probability *= (self.own if right else self.other) / (self.own + self.other)
            likely[(message,)] = probability
        return likely


exact_law = ExactSingleMessage
