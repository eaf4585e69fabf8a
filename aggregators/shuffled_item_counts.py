"""Track shuffled counts of labels over time, based on `dpstream.aggregators.followed_items`.

All items have the same 95 % interval width, from the mean variance over items.

Messages are of several kinds, each with consecutive numbers. N messages of a kind lie in the bucket
of an item: those about the item, a fraction q of all others, and D dummies on average. If there are
M real messages of the kind, (N - D - q M) / (1 - q) is an unbiased estimate of the item's count. It
remains unbiased if M is the number of received messages minus the mean number of dummies.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.bucket_counts import bucket_counts
from dpstream.aggregators.estimate import GAP, NORMAL_95
from dpstream.aggregators.followed_items import FollowedEpoch, FollowedItems, averaged_noise
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.aggregators.message_counts import MessageCounts
from dpstream.randomizers.affine_hashes import AffineHashes
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw


def counts_of_kind(
    received: MessageCounts, kind: int, hashes: AffineHashes, items: int, dummies: float
) -> tuple[NDArray[np.float64], float]:
    """Estimate every item's count, float64, shape (items,), from messages of one kind.

    `dummies` is the expected number of dummies in an item's bucket. The second result estimates the
    number of real messages. Messages of kind k start at k * `hashes.words`.

    >>> received = MessageCounts(np.dtype("<u1"))
    >>> received.add(np.array([1, 3, 5], np.uint8), np.array([7, 10, 12]))
    >>> counts_of_kind(received, 1, AffineHashes(3, 1), items=3, dummies=4.0)
    (array([ 6., -4.,  8.]), 10.0)
    """
    every = received.words.astype(np.int64)
    start, end = np.searchsorted(every, [kind * hashes.words, (kind + 1) * hashes.words])
    words = (every[start:end] - kind * hashes.words).astype(np.uint64)
    counts = received.counts[start:end]
    inside = bucket_counts(hashes, words, counts, items)
    real, overlap = int(counts.sum()) - hashes.buckets * dummies, hashes.overlap
    return np.asarray((inside - dummies - overlap * real) / (1 - overlap), np.float64), real


def dummies_variance(hashes: AffineHashes, spread: float) -> float:
    """Return the variance that dummies in all buckets add to an item's count.

    `spread` is the variance of the number of dummies in one bucket.
    """
    odds = hashes.overlap / (1 - hashes.overlap)
    return spread * (1 + odds**2 * (hashes.buckets - 1))


def collisions_variance(hashes: AffineHashes, items: int, messages: float) -> float:
    """Return the mean variance of item counts due to messages that collide in a hash."""
    return messages * (1 - 1 / items) * hashes.overlap / (1 - hashes.overlap)


class ShuffledItemCountsAggregator(FollowedItems[ShuffledItemCountsLaw, ItemEstimates]):
    def _published(self, found: FollowedEpoch, population: int) -> ItemEstimates:
        deviation = math.hypot(math.sqrt(found.variance), found.absence_error)
        return ItemEstimates(
            values=found.values,
            standard_error=deviation,
            half_width=NORMAL_95 * deviation,
            reports=self._received.of(found.epoch).messages,
            population=population,
            flags=() if found.released else (GAP,),
        )

    def _sampled(self, values: NDArray[np.float64], population: int) -> float:
        shares = np.clip(values / population, 0.0, 1.0)
        return float((shares * (1 - shares)).mean())

    def _signed(self, epoch: int, senders: int) -> tuple[NDArray[np.float64], float]:
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
    """Predict standard errors of items, in users, shape (last_epoch,).

    All devices are assumed to report and to have an item. Collisions of boosted messages, which are
    few, are ignored.
    """
    variance = collisions_variance(law.hashes, law.size, users) + sum(
        dummies_variance(law.hashes, noise.moments(users)[1]) for noise in law.noises
    )
    return np.sqrt(variance * averaged_noise(law.boost, last_epoch))
