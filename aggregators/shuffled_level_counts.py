"""Shuffled counts of numbers over time, server side: `dpstream.aggregators.followed_items`, on a
tree.

Every cell of an epoch, values held less values left, has the same noise; least squares make their
levels one (`dpstream.aggregators.tree_counts`). That is linear, and the same at every epoch, so it
makes no difference that what is followed are values and not cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP
from dpstream.aggregators.followed_items import FollowedEpoch, FollowedItems, averaged_noise
from dpstream.aggregators.level_estimates import LevelEstimates
from dpstream.aggregators.tree_counts import level_values
from dpstream.randomizers.code_variances import equal_variances, level_range_variances
from dpstream.randomizers.shuffled_counts.shuffled_level_counts import ShuffledLevelCountsLaw


class ShuffledLevelCountsAggregator(FollowedItems[ShuffledLevelCountsLaw, LevelEstimates]):
    """Counts of cells, and what they say of every value and range.

    Args:
        law: the constants of the job.
    """

    def _published(self, found: FollowedEpoch, population: int) -> LevelEstimates:
        return LevelEstimates.of_levels(
            self.law.levels,
            found.values,
            found.variance,
            silence=found.silence,
            rooted=self.law.rooted,
            reports=self._received.of(found.epoch).messages,
            population=population,
            flags=() if found.released else (GAP,),
        )

    def _sampled(self, values: NDArray[np.float64], population: int) -> float:
        """1: how it is shared out depends on the range, and comes with the estimates."""
        return 1.0

    def _signed(self, epoch: int, senders: int) -> tuple[NDArray[np.float64], float]:
        """Without dummies; and the variance of a cell."""
        law, received = self.law, self._received.of(epoch)
        cells, variance = np.zeros(law.words), 0.0
        counts = np.zeros(law.words * len(law.noises))
        counts[received.words] = received.counts
        for kind, noise in enumerate(law.noises):
            mean, spread = noise.moments(senders)
            cells += (1 - 2 * kind) * (counts[kind * law.words : (kind + 1) * law.words] - mean)
            variance += spread
        missing = np.zeros(law.levels.cells - law.words)
        variances = equal_variances(law.levels, rooted=law.rooted)
        return level_values(law.levels, np.concatenate([missing, cells]), variances), variance


def predicted_deviations(
    law: ShuffledLevelCountsLaw, last_epoch: int, users: int, start: int = 0, end: int = 1
) -> NDArray[np.float64]:
    """Of the number of values in [start, end) if everybody reports: in users, (last_epoch,)."""
    variances = equal_variances(law.levels, rooted=law.rooted)
    of_range = float(level_range_variances(law.levels, variances, start, end))
    noise = sum(noise.moments(users)[1] for noise in law.noises)
    return np.sqrt(noise * of_range * averaged_noise(law.boost, last_epoch))
