"""Track shuffled counts of labels over time, based on `dpstream.aggregators.followed_items`.

All items have the same 95 % interval width, computed from the mean variance over items.

Messages are of several kinds, each with consecutive numbers. N messages of a kind lie in the bucket
of an item: those about the item, a fraction q of all others, and D dummies on average. If there are
M real messages of the kind, (N - D - q M) / (1 - q) is an unbiased estimate of the item's count. It
remains unbiased if M is the number of received messages minus the mean number of dummies.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
    """Predict standard errors, in users, if all devices report an item; shape (last_epoch,).

    The few collisions of boosted messages are ignored.
    """
    variance = collisions_variance(law.hashes, law.size, users) + sum(
        dummies_variance(law.hashes, noise.moments(users)[1]) for noise in law.noises
    )
    return np.sqrt(variance * averaged_noise(law.boost, last_epoch))


MOST_TRANSFORMED: Final = 1 << 23
"""Maximum size of a Fourier transform, in vectors; each vector needs 30 bytes."""


# Number of steps of `by_lines` that take as long as one vector of the transform.
_TRANSFORM_COST = 8


# Maximum rounding error of a transformed count: its distance from the nearest integer.
_ROUNDING = 1e-3


_CHUNK = 1 << 16


def bucket_counts(
    hashes: AffineHashes,
    words: NDArray[np.integer],
    counts: NDArray[np.int64],
    items: int,
) -> NDArray[np.int64]:
    """Return the number of messages whose bucket contains each item, int64, shape (items,).

    This is the finite Radon transform: a message with direction d and bucket c counts for every
    item x on the line or plane <d, x> = c. A direction either begins with 1 or ignores the lowest
    digit of items. If it begins with 1, a message and an item's upper digits determine the lowest.

    `words`, shape (n,), are distinct messages in ascending order, `counts` their multiplicities.

    >>> hashes = AffineHashes(buckets=3, digits=2)
    >>> words, counts = np.array([2, 3], np.uint8), np.array([7, 10])  # x_1 = 2; x_0 = 0
    >>> bucket_counts(hashes, words, counts, 9).tolist()
    [10, 0, 0, 10, 0, 0, 17, 7, 7]
    """
    if hashes.digits == 1:
        return _table(words, counts, hashes.buckets)[:items]
    shorter, above = hashes.shorter, -(-items // hashes.row)
    begin = int(np.searchsorted(words, shorter.words))
    without_lowest = bucket_counts(shorter, words[:begin], counts[:begin], above)
    later = words[begin:].astype(np.int64) - shorter.words
    vectors = hashes.buckets**hashes.digits
    transformed = vectors <= MOST_TRANSFORMED and len(later) * above > _TRANSFORM_COST * vectors
    add_up = by_transform if transformed else by_lines
    sums = add_up(hashes, later, counts[begin:], above)
    return (np.repeat(without_lowest, hashes.row) + sums)[:items]


def by_lines(
    hashes: AffineHashes, words: NDArray[np.int64], counts: NDArray[np.int64], above: int
) -> NDArray[np.int64]:
    """Count messages whose directions begin with 1.

    `words`, shape (n,), are offsets from the first such message. The result is int64, shape (above
    * w,), indexed by the `above` values of the upper digits, then the w values of the lowest.
    """
    sums_above = np.zeros((above, hashes.buckets), np.int64)
    digits = hashes.upper_digits(np.arange(above))
    for start in range(0, len(words), _CHUNK):
        part = slice(start, start + _CHUNK)
        steps, buckets = np.divmod(words[part], hashes.buckets)
        coordinates = hashes.upper_digits(steps)
        for upper in range(above):
            lowest = buckets.copy()
            for along, digit in zip(coordinates, digits, strict=True):
                lowest -= along * digit[upper]
            lowest %= hashes.buckets
            sums_above[upper] += _table(lowest, counts[part], hashes.buckets)
    return sums_above[:, : hashes.row].ravel()


def by_transform(
    hashes: AffineHashes, words: NDArray[np.int64], counts: NDArray[np.int64], above: int
) -> NDArray[np.int64]:
    """Compute the result of `by_lines` by a Fourier transform over all vectors, Z_s^m.

    By the projection slice theorem, at a frequency t d, with t from 1 to s - 1, the transform of
    the result is s^(m-1) times that of the buckets of d. At frequency 0 it is s^(m-1) times the
    number of messages. Elsewhere it is 0.
    """
    buckets, digits = hashes.buckets, hashes.digits
    steps = buckets ** (digits - 1)
    table = _table(words, counts, steps * buckets).reshape(steps, buckets)
    of_buckets = np.fft.rfft(table, axis=1)
    spectrum = np.zeros_like(of_buckets)
    spectrum[0, 0] = table.sum()
    coordinates = hashes.upper_digits(np.arange(steps))
    for times in range(1, of_buckets.shape[1]):
        frequencies = np.zeros(steps, np.int64)
        for place, along in enumerate(coordinates):
            frequencies += times * along % buckets * buckets**place
        spectrum[frequencies, times] = of_buckets[:, times]
    shape = (buckets,) * digits
    sums = np.fft.irfftn(spectrum.reshape(*shape[1:], -1), shape, tuple(range(digits)))
    sums *= steps
    found = np.rint(sums)
    if np.abs(sums - found).max() > _ROUNDING:
        raise ArithmeticError(f"Fourier transform over {buckets} buckets is too inexact to round")
    return found.reshape(-1, buckets)[:above, : hashes.row].astype(np.int64).ravel()


def _table(words: NDArray[np.integer], counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    # Sums of integers below 2^53 are exact.
    return np.bincount(words.astype(np.int64), counts, size).astype(np.int64)
