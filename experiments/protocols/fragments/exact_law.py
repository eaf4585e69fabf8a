"""Exact output distribution for the smallest window: the number of 1 bits per cell and report.

The responses of a permanent backstop are enumerated as well, for both values of a bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import comb
from typing import TypeAlias

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from experiments.protocols.fragments import FragmentsLaw

Counts: TypeAlias = tuple[int, ...]
"""Number of 1 bits in a cell, for each report."""


class ExactFragments:
    """Enumerate the possible numbers of flipped bits: in the backstop, then in each report."""

    def __init__(self, law: FragmentsLaw, last_epoch: int) -> None:
        self.law = law
        self.devices = law.minimum
        self.reversed = _reversed(law.odds.weights)
        self.stopped = _reversed(law.backstop.weights) if law.backstop else Fraction()

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        if self.law.permanent:
            return self._permanent_views(stream)
        return independent(self._epoch(held) for held in stream)

    def _permanent_views(self, stream: Stream) -> dict[View, Fraction]:
        cells = [
            self._permanent_cell(tuple(int(item in held) for held in stream))
            for item in range(1, self.law.items + 1)
        ]
        likely: defaultdict[View, Fraction] = defaultdict(Fraction)
        for drawn, each in independent(cells).items():
            seen = tuple(
                self._seen([counts[epoch] for counts in drawn]) for epoch in range(len(stream))
            )
            likely[seen] += each
        return dict(likely)

    def _permanent_cell(self, held: tuple[int, ...]) -> dict[tuple[Counts, ...], Fraction]:
        """Return a cell's distribution over all epochs if only one user's bit can be 1."""
        found: defaultdict[tuple[Counts, ...], Fraction] = defaultdict(Fraction)
        stopped, others = self.stopped, self.devices - 1
        for none, one, raised in product((0, 1), (0, 1), range(others + 1)):
            # The user's responses for a 0 bit and a 1 bit, and other users' 1 bits.
            answered = (
                (stopped if none else 1 - stopped)
                * (1 - stopped if one else stopped)
                * _binomial(others, raised, stopped)
            )
            epochs = independent(self._reports(raised + (none, one)[value]) for value in held)
            for counts, each in epochs.items():
                found[counts] += answered * each
        return dict(found)

    def _epoch(self, held: tuple[int, ...]) -> dict[tuple[Report, ...], Fraction]:
        cells = [self._cell(int(item in held)) for item in range(1, self.law.items + 1)]
        return {self._seen(counts): likely for counts, likely in independent(cells).items()}

    def _seen(self, cells: Sequence[Counts]) -> tuple[Report, ...]:
        messages = sorted(
            report * self.law.items + cell
            for cell, counts in enumerate(cells)
            for report, count in enumerate(counts)
            for _ in range(count)
        )
        return tuple((message,) for message in messages)

    def _cell(self, held: int) -> dict[Counts, Fraction]:
        found: defaultdict[Counts, Fraction] = defaultdict(Fraction)
        for ones, likely in self._ones(held, self.stopped).items():
            for counts, reported in self._reports(ones).items():
                found[counts] += likely * reported
        return dict(found)

    def _reports(self, ones: int) -> dict[Counts, Fraction]:
        reported = self._ones(ones, self.reversed)
        return independent([reported] * self.law.reports)

    def _ones(self, ones: int, reversed_: Fraction) -> dict[int, Fraction]:
        """Return the distribution of a cell's number of 1 bits if `ones` were 1 before reversal."""
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


exact_law = ExactFragments
