"""Track shuffled counts of numbers over time on a tree, based on `followed_items`.

A cell counts messages about gained values minus messages about lost ones; all cells of an epoch
have the same noise. A least-squares fit makes the levels consistent
(`dpstream.aggregators.tree_counts`). The fit is linear and the same at every epoch, so tracking
values is equivalent to tracking cells.
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
    def _published(self, found: FollowedEpoch, population: int) -> LevelEstimates:
        return LevelEstimates.of_levels(
            self.law.levels,
            found.values,
            found.variance,
            absence_error=found.absence_error,
            rooted=self.law.rooted,
            reports=self._received.of(found.epoch).messages,
            population=population,
            flags=() if found.released else (GAP,),
        )

    def _sampled(self, values: NDArray[np.float64], population: int) -> float:
        """Return 1: `LevelEstimates` multiplies it by the variance of each range."""
        return 1.0

    def _signed(self, epoch: int, senders: int) -> tuple[NDArray[np.float64], float]:
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
    law: ShuffledLevelCountsLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """Predict standard errors of a value's count, in users, if all devices report."""
    variances = equal_variances(law.levels, rooted=law.rooted)
    of_value = float(level_range_variances(law.levels, variances, 0, 1))
    noise = sum(noise.moments(users)[1] for noise in law.noises)
    return np.sqrt(noise * of_value * averaged_noise(law.boost, last_epoch))
