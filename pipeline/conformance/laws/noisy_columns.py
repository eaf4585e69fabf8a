"""What devices can send that add noise to a column of a matrix, or send one entry of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

from dpstream.pipeline.conformance.cases import Report, Stream, View
from dpstream.pipeline.conformance.laws.independent import independent
from dpstream.randomizers.measurements import MeasurementsLaw
from dpstream.randomizers.noise_tables import TABLE_BITS


class NoisyColumns(ABC):
    """By enumeration of the noise of every entry, or of all rows and bits."""

    devices = 1

    def __init__(self, law: MeasurementsLaw, last_epoch: int) -> None:
        self.law = law

    @abstractmethod
    def column(self, item: int) -> list[int]:
        """The entries of an item, from 1 on."""

    def followed(self, stream: Stream) -> bool:
        """Any stream is."""
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        """What can be seen, with its probability."""
        return independent(
            {(report,): likely for report, likely in self._epoch(held[0]).items()}
            for held in stream
        )

    def _epoch(self, item: int) -> dict[Report, Fraction]:
        column = self.column(item) if item else [0] * len(self.column(1))
        if self.law.odds is not None:
            return self._sampled(column, *self.law.odds.weights)
        return independent(self._word(entry) for entry in column)

    def _word(self, entry: int) -> dict[int, Fraction]:
        """Of one entry, whose noise is that of the table that devices draw from."""
        assert self.law.noise is not None
        table, most = self.law.noise.table, self.law.noise.most
        found: defaultdict[int, Fraction] = defaultdict(Fraction)
        for place, (low, high) in enumerate(pairwise((0, *table.bounds))):
            seen = entry + table.first + place
            found[max(-most, min(most, seen)) + most] += Fraction(high - low, 1 << TABLE_BITS)
        return dict(found)

    def _sampled(self, column: list[int], kept: int, reversed_: int) -> dict[Report, Fraction]:
        found: dict[Report, Fraction] = {}
        for row, entry in enumerate(column):
            for bit in (0, 1):
                weight = kept if (entry > 0) == (bit == 1) else reversed_
                share = Fraction(1, 2) if entry == 0 else Fraction(weight, kept + reversed_)
                found[(2 * row + bit,)] = share / len(column)
        return found
