"""Estimate counts from tuples of Hadamard columns.

At an epoch, m of M messages lie in the set of an item. All messages about the item do. Each other
message (of the blanket or about another item) does so independently with probability q = 2^-tau. So
(m - q M) / (1 - q) is an unbiased estimate of f, the number of users with the item, for any M and
any number of dummies. Its variance is q (M - f) / (1 - q).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.item_counts import ItemCountsAggregator
from dpstream.aggregators.law_aggregator import check_format
from experiments.protocols.hadamard import HadamardLaw
from experiments.protocols.hadamard_matches import matches


class HadamardAggregator(ItemCountsAggregator[HadamardLaw]):
    """Count all messages and the messages in the set of each item, for every epoch.

    >>> from dpstream.aggregators.estimate import Participation
    >>> law = HadamardLaw(2, 1, 2, 1, 1, 2.0, "bernoulli", 1.0, 0.1, 1.0)
    >>> aggregator = HadamardAggregator(law)
    >>> aggregator.add(1, np.array([[2, 0], [3, 2], [1, 1], [2, 2]], np.uint8), None)
    >>> estimates = aggregator.estimate(1, Participation.constant(1, 4))
    >>> estimates.values.round(2).tolist()  # 2 and 1 messages lie in the sets, of 4
    [1.33, 0.0]
    """

    def check_messages(self, epoch: int, words: NDArray[np.unsignedinteger]) -> None:
        law = self.law
        form = law.message_format
        check_format(epoch, law.last_epoch, words, form.dtype, form.width)
        if words.size and int(words.max()) >= law.columns:
            raise ValueError(
                f"column {words.max()} at epoch {epoch} is out of range: there are {law.columns} "
                "columns"
            )

    def _matches(
        self, words: NDArray[np.unsignedinteger], counts: NDArray[np.unsignedinteger] | None
    ) -> NDArray[np.int64]:
        return matches(words, counts, self.law.items)

    def _counts(
        self, matched: NDArray[np.int64], senders: int
    ) -> tuple[NDArray[np.float64], float]:
        overlap, messages = self.law.overlap, int(matched[0])
        counts = (matched[1:].astype(np.float64) - overlap * messages) / (1 - overlap)
        fewest = min(max(float(counts.min()), 0.0), messages)
        return counts, noise_variance(self.law, messages - fewest)


def noise_variance(law: HadamardLaw, others: float) -> float:
    """Return the variance of an item's count, given the number of messages not about the item."""
    return law.overlap * others / (1 - law.overlap)
