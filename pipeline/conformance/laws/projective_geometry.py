"""Exact output distribution of a device: every point, weighted by orthogonality to the item."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from dpstream.randomizers.projective_geometry import ProjectiveGeometryLaw

Vector = tuple[int, ...]


class ExactProjectiveGeometry:
    devices = 1

    def __init__(self, law: ProjectiveGeometryLaw, last_epoch: int) -> None:
        self.law = law
        self.words = words(law.order, law.coordinates)
        self.items = items(law.order, law.coordinates)

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return independent(
            {(report,): likely for report, likely in self._epoch(held).items()} for held in stream
        )

    def _epoch(self, held: tuple[int, ...]) -> dict[Report, Fraction]:
        own, other = self.law.odds.weights
        found: defaultdict[Report, Fraction] = defaultdict(Fraction)
        for item in held:
            weights = [
                own if orthogonal(self.items[item], message, self.law.order) else other
                for message in self.words
            ]
            for number, weight in enumerate(weights):
                found[(number,)] += Fraction(weight, sum(weights) * len(held))
        return dict(found)


def words(order: int, coordinates: int) -> list[Vector]:
    """Return one vector for each message; the first nonzero coordinate of each vector is 1."""
    return [
        vector
        for vector in product(range(order), repeat=coordinates)
        if next(filter(None, vector), 0) == 1
    ]


def items(order: int, coordinates: int) -> list[Vector]:
    """Return a vector for every item: its last nonzero coordinate is 1."""
    found = [
        vector
        for vector in product(range(order), repeat=coordinates)
        if next(filter(None, vector[::-1]), 0) == 1
    ]
    return sorted(found, key=lambda vector: (last(vector), vector))


def last(vector: Vector) -> int:
    return max(place for place, coordinate in enumerate(vector) if coordinate)


def orthogonal(one: Vector, other: Vector, order: int) -> bool:
    return sum(a * b for a, b in zip(one, other, strict=True)) % order == 0


exact_law = ExactProjectiveGeometry
