"""Search for the top items of a large domain in the answers of several epochs.

Few users answer at an epoch. So answers about prefixes are counted over a window of epochs, and the
counts are added up before the search. Items that persist are found as if all users of the window
had answered at one epoch. An estimate is the mean number of users per epoch; the weight of an epoch
is its share of the answers.

In a window no longer than a horizon, a user answers at most once. If values persist, the users who
answer about a level are then one random sample, and the stated variance is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.cell_window import FOUND, PrefixCounts
from dpstream.aggregators.counts import CountedWindow
from dpstream.aggregators.epoch_tables import WordAggregator
from dpstream.aggregators.estimate import INCOMPLETE, Participation
from dpstream.aggregators.heavy_hitters import HeavyHitters
from dpstream.aggregators.hyperplane_sums import hyperplane_sums
from dpstream.aggregators.item_counts import scaled_levels
from dpstream.randomizers.cell_codes.prefixes import PrefixCells
from dpstream.randomizers.point_spaces import PointSpace
from dpstream.randomizers.sampled_response.leveled_response import LeveledResponseLaw


@dataclass(frozen=True, eq=False)
class PrefixWindow(CountedWindow):
    """Answers of one or more epochs, each with at least one answer.

    Attributes:
        counts: Number of answers by word, int64, shape (words,), summed over epochs.
        population: Number of enrolled users, summed over epochs.
    """

    averages: ClassVar[bool] = True

    law: LeveledResponseLaw
    counts: NDArray[np.int64]
    epochs: int
    population: int

    @cached_property
    def estimates(self) -> PrefixCounts:
        code, population = self.law.code, self.population / self.epochs
        assert isinstance(code, PrefixCells)
        cells, noise, held = scaled_levels(self._levels(), population, self.epochs)
        return PrefixCounts(
            code=code,
            cells=cells,
            noise_variance=noise,
            reports=int(self.counts.sum()),
            population=round(population),
            held_variance=held,
        )

    def plus(self, later: Self) -> PrefixWindow:
        return replace(
            self,
            counts=self.counts + later.counts,
            epochs=self.epochs + later.epochs,
            population=self.population + later.population,
        )

    def _levels(self) -> Iterator[tuple[NDArray[np.int64], int, tuple[Fraction, Fraction]]]:
        words = pairwise(self.law.first_words)
        for level, (first, end) in zip(self.law.levels, words, strict=True):
            assert isinstance(level.sets, PointSpace)
            counts = self.counts[first:end]
            # The first point is not a cell.
            inside = hyperplane_sums(level.sets, counts, 1 + level.items)[1:]
            yield inside, int(counts.sum()), level.probabilities


class SampledPrefixesAggregator(WordAggregator[LeveledResponseLaw]):
    """Count how often each answer was given.

    Args:
        law: Mechanism, whose levels are prefixes.
        window: Maximum number of epochs whose counts are summed for an estimate, ending with its
            epoch; None for all epochs of the horizon so far.
    """

    def __init__(self, law: LeveledResponseLaw, window: int | None = None) -> None:
        super().__init__(law)
        self._window = law.last_epoch if window is None else window

    def estimate(self, epoch: int, participation: Participation) -> HeavyHitters | None:
        """Search the window that ends with an epoch; return None if the epoch has no answers.

        Users who answer are assumed to be a simple random sample of the enrolled users. Epochs
        without answers are left out.
        """
        epochs = range(max(1, epoch - self._window + 1), epoch + 1)
        known = [each for each in self._tables.epochs if each in epochs]
        window = self.window(known, participation) if epoch in known else None
        if window is None:
            return None
        found = window.estimates.top(FOUND)
        flags = () if len(known) == len(epochs) else (INCOMPLETE,)
        return replace(found, flags=flags, averaged=None if self._window == 1 else len(known))

    def window(self, epochs: Sequence[int], participation: Participation) -> PrefixWindow | None:
        if not set(self._tables.epochs).issuperset(epochs):
            return None
        population = sum(max(1, int(participation.population[epoch])) for epoch in epochs)
        return PrefixWindow(self.law, self._tables.added_up(epochs), len(epochs), population)
