"""Shuffled counts of items over time, server side: `dpstream.aggregators.followed_items`, of
labels.

All items have one and the same error bar: that of a mean variance over them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import GAP, NORMAL_95
from dpstream.aggregators.followed_items import Followed, FollowedItems, averaged_noise
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.item_words import collisions_variance, counts_of_kind, dummies_variance
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw


class ShuffledItemCountsAggregator(FollowedItems[ShuffledItemCountsLaw, ItemEstimates]):
    """Counts of words, and what they say of every item.

    Args:
        law: the constants of the job.
    """

    def _published(self, found: Followed, population: int) -> ItemEstimates:
        deviation = math.hypot(math.sqrt(found.variance), found.silence)
        return ItemEstimates(
            values=found.values,
            standard_deviation=deviation,
            half_width=NORMAL_95 * deviation,
            reports=self._received.of(found.epoch).messages,
            population=population,
            flags=() if found.released else (GAP,),
        )

    def _sampled(self, values: NDArray[np.float64], population: int) -> float:
        """The mean over the items."""
        shares = np.clip(values / population, 0.0, 1.0)
        return float((shares * (1 - shares)).mean())

    def _signed(self, epoch: int, senders: int) -> tuple[NDArray[np.float64], float]:
        """Less dummies and collisions; the mean variance over the items."""
        law, received = self.law, self._received.of(epoch)
        found, variance = np.zeros(law.size), 0.0
        for kind, noise in enumerate(law.noises):
            mean, spread = noise.moments(senders)
            counts, real = counts_of_kind(received, kind, law.hashes, law.size, mean)
            found += (1 - 2 * kind) * counts
            variance += dummies_variance(law.hashes, spread)
            variance += collisions_variance(law.hashes, law.size, max(0.0, real))
        return found, variance


def predicted_deviations(
    law: ShuffledItemCountsLaw, last_epoch: int, users: int
) -> NDArray[np.float64]:
    """To expect of every item when everybody reports and has one: in users, shape (last_epoch,).

    Collisions of boosted messages, which are few, are left out.
    """
    variance = collisions_variance(law.hashes, law.size, users) + sum(
        dummies_variance(law.hashes, noise.moments(users)[1]) for noise in law.noises
    )
    return np.sqrt(variance * averaged_noise(law.boost, last_epoch))
