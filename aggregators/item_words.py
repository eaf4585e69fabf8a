"""Words about items, of several kinds one after the other, and what they say of every item.

Of M messages of a kind, N lie in the bucket of an item: its own, a part q of all others, and
dummies. With their mean known, (N - dummies - q M) / (1 - q) is unbiased, and so it is with the
messages received less all dummies for M.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.bucket_counts import bucket_counts
from dpstream.aggregators.word_counts import WordCounts
from dpstream.randomizers.affine_hashes import AffineHashes


def counts_of_kind(
    received: WordCounts, kind: int, hashes: AffineHashes, items: int, dummies: float
) -> tuple[NDArray[np.float64], float]:
    """What words of one kind say of every item.

    Args:
        received: words of all kinds.
        kind: from 0 on; its words begin at kind * `hashes.words`.
        hashes: what items were hashed with.
        items: how many there are.
        dummies: expected among the words of an item.

    Returns:
        float64, shape (items,), and how many real messages there are, by estimate.

    >>> received = WordCounts(np.dtype("<u1"))
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
    """What dummies add to the variance of an item's count: those elsewhere count in M.

    Args:
        hashes: what items are hashed with.
        spread: variance of the dummies among the words of an item.
    """
    odds = hashes.overlap / (1 - hashes.overlap)
    return spread * (1 + odds**2 * (hashes.buckets - 1))


def collisions_variance(hashes: AffineHashes, items: int, messages: float) -> float:
    """What so many messages add, each with a hash of its own; mean over the items."""
    return messages * (1 - 1 / items) * hashes.overlap / (1 - hashes.overlap)
