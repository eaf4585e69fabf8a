"""Exact output distribution for the smallest window: rows of devices, then bits in each bucket."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product
from math import comb

import numpy as np

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from experiments.protocols.count_mean_sketch import CountMeanSketchLaw


class ExactCountMeanSketch:
    """Enumerate the rows of all devices and the number of 1 bits in each cell."""

    def __init__(self, law: CountMeanSketchLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.minimum
        kept, reversed_ = law.bits.odds.weights
        self.reversed = Fraction(reversed_, kept + reversed_)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return independent(self._epoch(held[0]) for held in stream)

    def _epoch(self, item: int) -> dict[tuple[Report, ...], Fraction]:
        found: defaultdict[tuple[Report, ...], Fraction] = defaultdict(Fraction)
        rows = range(self.law.rows)
        for own in rows:
            for others in product(rows, repeat=self.devices - 1):
                share = Fraction(1, self.law.rows**self.devices)
                users = [(own, *others).count(row) for row in rows]
                for messages, likely in self._given(item, own, users).items():
                    found[messages] += share * likely
        return dict(found)

    def _given(self, item: int, own: int, users: list[int]) -> dict[tuple[Report, ...], Fraction]:
        bucket = int(self.law.buckets_of(own, np.array([item]))[0])
        cells = [
            self._ones(int(item > 0 and (row, each) == (own, bucket)), users[row])
            for row in range(self.law.rows)
            for each in range(self.law.buckets)
        ]
        return {
            tuple((message,) for message, ones in enumerate(drawn) for _ in range(ones)): likely
            for drawn, likely in independent(cells).items()
        }

    def _ones(self, held: int, users: int) -> dict[int, Fraction]:
        """Return the distribution of a cell's number of 1 bits if `held` were 1 before reversal."""
        found: defaultdict[int, Fraction] = defaultdict(Fraction)
        for lost in range(held + 1):
            for raised in range(users - held + 1):
                found[held - lost + raised] += self._binomial(held, lost) * self._binomial(
                    users - held, raised
                )
        return {ones: likely for ones, likely in found.items() if likely}

    def _binomial(self, trials: int, count: int) -> Fraction:
        return comb(trials, count) * self.reversed**count * (1 - self.reversed) ** (trials - count)


exact_law = ExactCountMeanSketch
