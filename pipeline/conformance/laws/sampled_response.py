"""Exact output distribution of a sampled_response device, by enumeration of phases and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.pipeline.conformance.laws.projective_geometry import items, orthogonal, words
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.sampled_response import AnswerSets, SampledResponseLaw
from dpstream.randomizers.sampled_response.leveled_response import LeveledResponseLaw

Values: TypeAlias = list[int | tuple[int, ...]]


class ExactPhases(ABC):
    """Enumerate phases; a subclass enumerates the answers of a device at given values."""

    devices = 1

    def __init__(self, law: SampledResponseLaw | LeveledResponseLaw, last_epoch: int) -> None:
        self.law: Any = law
        self.last_epoch = last_epoch

    @abstractmethod
    def sent(self, values: Values) -> dict[tuple[int, ...], Fraction]:
        """Return the probabilities of all answers, given the values at the answered epochs."""

    def followed(self, stream: Stream) -> bool:
        """Return whether the user has an item at all epochs if the job expects one."""
        return not self.law.complete or all(stream)

    def views(self, stream: Stream) -> dict[View, Fraction]:
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        horizon, answers = self.law.last_epoch, self.law.reports
        for phase in range(horizon):
            asked = sorted((phase + i * horizon // answers) % horizon for i in range(answers))
            sent = self.sent([stream[epoch] if epoch < len(stream) else 1 for epoch in asked])
            for points, probability in sent.items():
                view: list[tuple[tuple[int, ...], ...]] = [()] * self.last_epoch
                for epoch, point in zip(asked, points, strict=True):
                    if epoch < self.last_epoch:
                        view[epoch] = ((point,),)
                probabilities[tuple(view)] += probability / horizon
        return dict(probabilities)


class ExactSampledResponse(ExactPhases):
    def __init__(self, law: SampledResponseLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.sets = sets_of(law.sets)
        self.points = range(law.sets.points)

    def sent(self, values: Values) -> dict[tuple[int, ...], Fraction]:
        complete, weights = self.law.complete, self.law.flips.weights
        own: list[Iterable[int]] = []
        for value in values:
            if isinstance(value, tuple):
                own.append(value)
            else:
                own.append(range(self.law.items) if complete and not value else [value - complete])
        sent: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for about in product(*own):
            of_points = {
                points: weights[
                    sum(point not in self.sets[x] for x, point in zip(about, points, strict=True))
                ]
                for points in product(self.points, repeat=len(about))
            }
            total = sum(of_points.values())
            for points, weight in of_points.items():
                sent[points] += Fraction(weight, total)
        choices = len(list(product(*own)))
        return {points: probability / choices for points, probability in sent.items()}


class ExactLeveledResponse(ExactPhases):
    def __init__(self, law: LeveledResponseLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.levels = [ExactSampledResponse(level, last_epoch) for level in law.levels]

    def sent(self, values: Values) -> dict[tuple[int, ...], Fraction]:
        """Enumerate levels, the items that an answer can be about, and the points of each level."""
        (value,) = values
        own: Iterable[int] = value if isinstance(value, tuple) else [value]
        if self.law.complete and not value:
            own = range(1, 1 + self.law.items)
        about = list(own)
        sent: defaultdict[tuple[int, ...], Fraction] = defaultdict(Fraction)
        for cells in self.law.cells_of(np.array(about, np.int64)).tolist():
            for level, cell, first in zip(self.levels, cells, self.law.first_words, strict=False):
                for (point,), probability in level.sent([cell]).items():
                    sent[(first + point,)] += probability / len(about) / len(cells)
        return dict(sent)


def sets_of(system: AnswerSets) -> list[frozenset[int]]:
    if isinstance(system, PointSpace):
        points = words(system.order, system.coordinates)
        return [
            frozenset(n for n, y in enumerate(points) if orthogonal(x, y, system.order))
            for x in items(system.order, system.coordinates)
        ]
    subsets = combinations(range(system.values), system.size)
    ordered = sorted(subsets, key=lambda subset: tuple(reversed(subset)))
    return [
        frozenset(number for number, subset in enumerate(ordered) if value in subset)
        for value in range(system.values)
    ]


def exact_law(law: SampledResponseLaw | LeveledResponseLaw, last_epoch: int) -> ExactPhases:
    if isinstance(law, LeveledResponseLaw):
        return ExactLeveledResponse(law, last_epoch)
    return ExactSampledResponse(law, last_epoch)
