"""Calibrate the mechanism of shuffled counts of items from a job's parameters.

More buckets cause fewer collisions but need more dummies, since each item gets a smaller fraction
of them. The number of buckets is the largest that the message limit allows, and at most the
smallest number without collisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpstream.randomizers.accounting.item_streams import (
    ItemReports,
    epsilon_for_items,
    noise_for_items,
)
from dpstream.randomizers.accounting.table_distances import FOR_TABLES, check_tables
from dpstream.randomizers.affine_hashes import AffineHashes, is_prime
from dpstream.randomizers.cell_noise_law import CellNoiseLaw, DummyLaw, too_many
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.shuffled_counts import ShuffledCountsParameters
from dpstream.randomizers.shuffled_counts.shuffled_item_counts import ShuffledItemCountsLaw

MESSAGES_PER_EPOCH = 10.0
"""Default maximum number of messages per user and epoch when choosing the number of buckets."""


def calibrate(
    parameters: ShuffledCountsParameters, last_epoch: int, minimum: int
) -> ShuffledItemCountsLaw:
    """Calibrate for items and windows of at least `minimum` contributors.

    Raises `ValueError` if no noise suffices, or if it needs more messages than users can send.

    >>> items = tuple(map(str, range(10_000)))
    >>> requested = ShuffledCountsParameters(1, 1e-6, messages_per_user=158, domain=items)
    >>> law = calibrate(requested, last_epoch=64, minimum=100_000)
    >>> law.buckets, round(law.held.mean), round(law.messages)
    (61, 2323, 155)
    """
    spared = parameters.delta * (1 - FOR_TABLES)
    law = _Job(parameters, last_epoch, minimum, spared).best_law()
    cells = len(law.noises) * last_epoch
    # One draw covers the messages of all buckets.
    drawn = replace(law.held, mean=law.held.mean * law.buckets)
    check_tables(parameters.epsilon, parameters.delta, [(drawn, cells)])
    allowed = parameters.messages_per_user
    if allowed is not None and law.messages > allowed:
        raise ValueError(too_many(law.messages, allowed, law.held, last_epoch))
    return law


def epsilon_with(law: ShuffledItemCountsLaw, honest: int) -> float:
    reports = ItemReports(law.last_epoch, law.max_changes, law.boost, law.hashes.overlap)
    share, delta = honest / law.held.minimum, law.delta * (1 - FOR_TABLES)
    left = None if law.left is None else law.left.mean * share
    return epsilon_for_items(law.held.mean * share, left, delta, reports)


@dataclass(frozen=True, slots=True)
class _Job:
    """Inputs of the search for a mechanism; `delta` excludes the part reserved for table errors."""

    parameters: ShuffledCountsParameters
    last_epoch: int
    minimum: int
    delta: float

    @property
    def size(self) -> int:
        return domain_size(self.parameters.domain or ())

    def best_law(self) -> ShuffledItemCountsLaw:
        requested = self.parameters
        if requested.max_changes is None or requested.boost is not None:
            return self.law(requested.boost or 0)
        likely = round(math.sqrt(self.last_epoch / (4 * requested.max_changes)))
        laws = [self.law(boost) for boost in range(max(0, likely - 1), likely + 2)]
        return min(laws, key=self._error)

    def law(self, boost: int) -> ShuffledItemCountsLaw:
        requested = self.parameters
        if requested.buckets is not None:
            return self.law_of(boost, requested.buckets)
        if requested.cells == "count_min" or requested.dummies == "shuffle":
            return self.law_of(boost, _enough_buckets(self.size))
        limit = requested.messages_per_user or MESSAGES_PER_EPOCH * self.last_epoch
        return _fitting(lambda buckets: self.law_of(boost, buckets), self.size, limit)

    def law_of(self, boost: int, buckets: int) -> ShuffledItemCountsLaw:
        requested = self.parameters
        max_changes = requested.max_changes if requested.max_changes is not None and boost else 0
        overlap = AffineHashes.for_items(buckets, self.size).overlap
        reports = ItemReports(self.last_epoch, max_changes, boost, overlap)
        held, left = noise_for_items(requested.epsilon, self.delta, reports)
        kind: DummyLaw = "shuffle" if requested.dummies == "shuffle" else "poisson"
        return ShuffledItemCountsLaw(
            last_epoch=self.last_epoch,
            size=self.size,
            epsilon=requested.epsilon,
            delta=requested.delta,
            max_changes=max_changes,
            boost=boost,
            buckets=buckets,
            held=CellNoiseLaw(kind, held, self.minimum),
            left=None if left is None else CellNoiseLaw(kind, left, self.minimum),
        )

    def _error(self, law: ShuffledItemCountsLaw) -> float:
        overlap = law.hashes.overlap
        variance = sum(noise.mean for noise in law.noises) + self.minimum * overlap / (1 - overlap)
        kept = (law.boost / (law.boost + 1)) ** 2
        ages = range(1, self.last_epoch + 1)
        averaged = sum(1 - kept**age for age in ages) / self.last_epoch
        return variance * averaged / (2 * law.boost + 1)


def _enough_buckets(items: int) -> int:
    return next(number for number in range(items, 2 * items + 2) if is_prime(number))


def _fitting(
    law_of: Callable[[int], ShuffledItemCountsLaw], items: int, limit: float
) -> ShuffledItemCountsLaw:
    """Return the mechanism with the most buckets within the message limit; at least two."""
    buckets = _enough_buckets(items)
    law = law_of(buckets)
    while law.messages > limit and buckets > 2:
        # Fewer buckets need more noise per bucket, so the first number that fits is the largest.
        spare = max(0.0, limit - (law.messages - law.dummy_messages)) / law.dummy_messages
        fewer = max(2, min(buckets - 1, math.floor(buckets * spare)))
        buckets = next(prime for prime in range(fewer, 1, -1) if is_prime(prime))
        law = law_of(buckets)
    return law
