"""Calibrate the mechanism of shuffled counts of numbers from a job's parameters.

Trees with more levels answer ranges with fewer cells, but each cell needs more noise: at most
approximately in proportion to the number of levels. The search starts with the tree that would be
best if the noise were proportional, or with the next best tree within the message limit. With a
boost the search also ends there, since the noise is then proportional.

With a boost the root is omitted, and each of the M levels below it is charged separately. Two
streams of values differ on each level like two streams of items
(`dpstream.randomizers.accounting.item_streams`). Two values below the same node differ less there:
in one cell, by at most the number of messages of either value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from dpstream.randomizers.accounting.best_grid import best_shapes
from dpstream.randomizers.accounting.item_streams import (
    ItemReports,
    epsilon_for_items,
    noise_for_items,
)
from dpstream.randomizers.accounting.level_streams import epsilon_for_levels, poisson_for_levels
from dpstream.randomizers.accounting.table_distances import FOR_TABLES, check_tables
from dpstream.randomizers.cell_codes.levels import Levels
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw, too_many
from dpstream.randomizers.code_variances import equal_variances, mean_deviation
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw


def calibrate(
    parameters: ShuffledCountsParameters, last_epoch: int, minimum: int
) -> ShuffledLevelCountsLaw:
    """Return the mechanism for numbers or bits with the least error within the message limit.

    Raises `ValueError` if no noise suffices, or if it needs more messages than users can send.

    >>> from dpstream.randomizers.item_domains import Numbers
    >>> requested = ShuffledCountsParameters(1, 1e-6, domain=Numbers(0, 80, 32))
    >>> law = calibrate(requested, last_epoch=8, minimum=20_000)
    >>> law.levels.branching, round(law.held.mean, 1), round(law.messages, 1)
    ((8, 4), 572.1, 33.4)
    """
    job = LevelJob(parameters, last_epoch, minimum, parameters.delta * (1 - FOR_TABLES))
    best = min((job.best_law(boost) for boost in job.boosts()), key=job.error)
    if math.isinf(job.error(best)):
        allowed = parameters.messages_per_user
        raise ValueError(too_many(best.messages, allowed or math.inf, best.held, last_epoch))
    # One draw covers all cells of a kind.
    drawn = [(replace(noise, mean=noise.mean * best.words), last_epoch) for noise in best.noises]
    check_tables(parameters.epsilon, parameters.delta, drawn)
    return best


def range_error(law: ShuffledLevelCountsLaw) -> float:
    """Return the mean standard error of counts in random ranges, for windows of minimum size."""
    kept = (law.boost / (law.boost + 1)) ** 2
    averaged = sum(1 - kept**age for age in range(1, law.last_epoch + 1)) / law.last_epoch
    variance = sum(noise.mean for noise in law.noises) * averaged / (2 * law.boost + 1)
    return math.sqrt(variance) * _deviation(law.levels, law.boost)


def epsilon_with(law: ShuffledLevelCountsLaw, honest: int) -> float:
    share = honest / law.held.minimum
    delta, below = law.delta * (1 - FOR_TABLES), len(law.levels.branching)
    if law.left is None:
        return epsilon_for_levels(law.held.mean * share, delta, law.last_epoch, below)
    reports = ItemReports(law.last_epoch, law.max_changes, law.boost, 0.0, below)
    return epsilon_for_items(law.held.mean * share, law.left.mean * share, delta, reports)


@dataclass(frozen=True, slots=True)
class LevelJob:
    """Inputs of the search for a mechanism; `delta` excludes the part reserved for table errors."""

    parameters: ShuffledCountsParameters
    last_epoch: int
    minimum: int
    delta: float

    @property
    def size(self) -> int:
        assert self.parameters.domain is not None
        return domain_size(self.parameters.domain)

    def boosts(self) -> tuple[int, ...]:
        """Return the job's boost, or the candidates 0 and those near sqrt(T / 4k)."""
        requested = self.parameters
        if requested.max_changes is None or requested.boost is not None:
            return (requested.boost or 0,)
        likely = round(math.sqrt(self.last_epoch / (4 * requested.max_changes)))
        return tuple({0, *range(max(0, likely - 1), likely + 2)})

    def best_law(self, boost: int) -> ShuffledLevelCountsLaw:
        """Return the mechanism with the best tree within the limit, or with the fewest messages."""
        # In ascending order of the number of levels.
        trees = best_shapes(self.size, lambda levels: _deviation(levels, boost))
        likely = [math.sqrt(len(levels.branching)) * deviation for levels, deviation in trees]
        law = cache(lambda index: self.law(boost, trees[index][0]))

        def error(index: int) -> float:
            return self.error(law(index)) if 0 <= index < len(trees) else math.inf

        order = sorted(range(len(trees)), key=lambda index: likely[index])
        best = next((index for index in order if error(index) < math.inf), None)
        if best is None:
            return min(map(law, order), key=lambda each: each.messages)
        for step in () if boost else (-1, 1):
            while error(best + step) < error(best):
                best += step
        return law(best)

    def error(self, law: ShuffledLevelCountsLaw) -> float:
        allowed = self.parameters.messages_per_user
        return range_error(law) if allowed is None or law.messages <= allowed else math.inf

    def law(self, boost: int, levels: Levels) -> ShuffledLevelCountsLaw:
        requested, below = self.parameters, len(levels.branching)
        max_changes = requested.max_changes if requested.max_changes is not None and boost else 0
        held, left = self._noise(max_changes, boost, below)
        kind: DummyLaw = "shuffle" if requested.dummies == "shuffle" else "poisson"
        return ShuffledLevelCountsLaw(
            last_epoch=self.last_epoch,
            levels=levels,
            epsilon=requested.epsilon,
            delta=requested.delta,
            max_changes=max_changes,
            boost=boost,
            held=CellNoiseLaw(kind, held, self.minimum),
            left=None if left is None else CellNoiseLaw(kind, left, self.minimum),
        )

    def _noise(self, max_changes: int, boost: int, below: int) -> tuple[float, float | None]:
        epsilon = self.parameters.epsilon
        if not boost:
            return poisson_for_levels(epsilon, self.delta, self.last_epoch, below), None
        return noise_for_items(
            epsilon, self.delta, ItemReports(self.last_epoch, max_changes, boost, 0.0, below)
        )


def _deviation(levels: Levels, boost: int) -> float:
    return mean_deviation(levels, equal_variances(levels, rooted=not boost))
