"""Estimate counts from one message per user.

Each message independently supports an item with probability p if its user has the item, and with
probability r otherwise. So if m of n messages support the item, (m - r n) / (p - r) is an unbiased
estimate of f, the number of users with the item. Its variance is
(f p (1 - p) + (n - f) r (1 - r)) / (p - r)^2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_counts import ItemCountsAggregator, spoken_for_variance
from dpstream.aggregators.law_aggregator import check_format
from dpstream.randomizers.single_message import SingleMessageLaw

# Batch size, in messages whose bits are unpacked.
_COUNTED_AT_ONCE = 1 << 12


class SingleMessageAggregator(ItemCountsAggregator[SingleMessageLaw]):
    """Count all messages and the messages that support each item, for every epoch.

    >>> from dpstream.aggregators.estimate import Participation
    >>> from dpstream.randomizers.composed import ComposedLaw
    >>> odds = ComposedLaw((3, 1))
    >>> law = SingleMessageLaw(2, 1, "rappor", 1, 1, odds, 1.0, 0.1, 1.0)
    >>> aggregator = SingleMessageAggregator(law)
    >>> aggregator.add(1, np.array([[1], [3], [1], [0]], np.uint8), None)
    >>> aggregator.estimate(1, Participation.constant(1, 4)).values.tolist()  # (3 - 1) / 0.5, 0
    [4.0, 0.0]
    """

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        law = self.law
        form = law.message_format
        check_format(epoch, law.last_epoch, words, form.dtype, form.width)
        largest = (1 << (law.items - 8 * (form.width - 1))) - 1 if law.bits else law.items
        if len(words) and int(words[:, -1].max()) > largest:
            raise ValueError(
                f"message at epoch {epoch} is {words[:, -1].max()}; expected at most {largest}"
            )

    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        items = self.law.items
        found = np.zeros(items + 1, np.int64)
        if not self.law.bits:
            # Integers below 2^53: sums are exact.
            weights = None if counts is None else counts.astype(np.float64)
            found += np.bincount(words[:, 0], weights, items + 1).astype(np.int64)
            found[0] = found.sum()
            return found
        times = np.ones(len(words), np.int64) if counts is None else counts.astype(np.int64)
        found[0] = times.sum()
        for start in range(0, len(words), _COUNTED_AT_ONCE):
            part = words[start : start + _COUNTED_AT_ONCE].astype(np.uint8)
            bits = np.unpackbits(part, axis=1, count=items, bitorder="little")
            found[1:] += times[start : start + _COUNTED_AT_ONCE] @ bits
        return found

    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        held, other = map(float, self.law.probabilities)
        messages = int(matched[0])
        counts = (matched[1:].astype(np.float64) - other * messages) / (held - other)
        most = min(max(float(counts.max()), 0.0), messages)
        return counts, spoken_for_variance(self.law.probabilities, messages, most)
