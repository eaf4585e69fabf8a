"""Estimate how many users have a number in each bucket or range, from answers about one level.

The answers about a level come from a random sample of all users, and estimate its nodes as
`sampled_items` estimates items. Least squares makes the nodes of all levels consistent, with
weights that do not depend on the answers, so that ranges and means over epochs stay unbiased.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.epoch_tables import MOST_RESUMED, ResumableTables, WordAggregator
from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.sampled_items import answers_inside, cells_counted, counts_of_answers
from dpstream.aggregators.sampled_ranges import AskedLevel, SampledRanges
from dpstream.aggregators.tree_counts import level_values
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.sampled_response import SampledResponseLaw
from dpstream.randomizers.sampled_response.leveled_response import (
    LeveledResponseLaw,
    contrast_variances,
    node_variance,
)


class SampledNumbersAggregator(WordAggregator[LeveledResponseLaw]):
    """Count the answers at each epoch by level, as `SampledItemsAggregator` does for one level.

    >>> from dpstream.randomizers.sampled_response.calibration import calibrate_numbers
    >>> aggregator = SampledNumbersAggregator(calibrate_numbers(4.0, 4, last_epoch=1))
    >>> aggregator.add(1, np.array([[1], [1], [1], [3]], np.uint8), None)
    >>> aggregator.estimate(1, Participation.constant(1, 4)).values.round(2).tolist()
    [-0.07, 3.15, -0.07, 1.0]
    """

    ordered = True

    @property
    def cells(self) -> int:
        return sum(map(cells_counted, self.law.levels))

    def _count(
        self,
        epoch: int,
        words: NDArray[np.unsignedinteger],
        counts: NDArray[np.unsignedinteger] | None,
    ) -> None:
        tables = []
        for level, (first, end) in zip(
            self.law.levels, pairwise(self.law.first_words), strict=True
        ):
            here = (words[:, 0] >= first) & (words[:, 0] < end)
            points = words[here, 0] - first
            times = None if counts is None else counts[here]
            tables.append(counts_of_answers(level, points, times))
        self._tables.add_table(epoch, np.concatenate(tables))

    def estimate(self, epoch: int, participation: Participation) -> SampledRanges | None:
        """Estimate how many enrolled users have a value in each bucket; None without such answers.

        Users who answer are assumed to be a simple random sample of the enrolled users, all of whom
        have a value. A level without answers is left out.
        """
        counts = self._tables.counts(epoch)
        if counts is None:
            return None
        population = max(1, int(participation.population[epoch]))
        nodes, weights = [np.array([float(population)])], [0.0]
        asked: list[AskedLevel] = []
        answered = 0
        for level, answers in self._by_level(counts):
            reports, inside = answers_inside(level, answers)
            answered += reports
            own, other = map(float, level.probabilities)
            shares = (inside / max(1, reports) - other) / (own - other)
            nodes.append(population * shares)
            weights.append(node_variance(level) if reports else np.inf)
            if reports:
                asked.append(asked_level(level, reports, population))
        if not np.isfinite(weights[-1]):
            return None
        tree = self.law.code
        assert isinstance(tree, Levels)
        values = level_values(tree, np.concatenate(nodes), weights)
        return SampledRanges.of(values, tuple(asked), answered, population)

    def _by_level(
        self, counts: NDArray[np.int64]
    ) -> Iterator[tuple[SampledResponseLaw, NDArray[np.int64]]]:
        ends = accumulate(map(cells_counted, self.law.levels))
        for level, end in zip(self.law.levels, ends, strict=True):
            yield level, counts[end - cells_counted(level) : end]


class ResumableNumbersAggregator(ResumableTables[LeveledResponseLaw], SampledNumbersAggregator):
    """Store few enough counts to keep them with an estimate."""


def sampled_numbers(law: LeveledResponseLaw) -> SampledNumbersAggregator:
    aggregator = SampledNumbersAggregator(law)
    return ResumableNumbersAggregator(law) if aggregator.cells <= MOST_RESUMED else aggregator


def asked_level(level: SampledResponseLaw, reports: float, population: float) -> AskedLevel:
    weight, parts = 1 / node_variance(level), contrast_variances(level)
    return AskedLevel.of(level.items, weight, parts, reports, population)
